// Every tuning number of the CPU kernels, with the limit that fixed it.
#pragma once

#include "simd.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// A panel holds kVectors registers of query rows; a register tile is kBroadcast x kVectors.
/// Accumulators + kVectors loads + 1 broadcast must fit the registers (16; 32 with AVX-512), and at
/// least 8 accumulators are needed to cover the latency of two FMA ports.
///
/// | ISA     | registers | wide panel      | narrow panel   |
/// | generic | 16 x 4    | 4 x 3 = 12 rows | 8 x 1 = 4 rows |
/// | avx2    | 16 x 8    | 4 x 3 = 24 rows | 8 x 1 = 8 rows |
/// | avx512  | 32 x 16   | 8 x 2 = 32 rows | 8 x 1 = 16 rows|
#if defined(FUSED_ATTENTION_ISA_AVX512)
constexpr int kWideVectors = 2;  // 3 (48 rows) waste more of a short sequence and gain nothing here
constexpr int kWideBroadcast = 8;
constexpr int kNarrowBroadcast = 8;
#else
constexpr int kWideVectors = 3;
constexpr int kWideBroadcast = 4;
constexpr int kNarrowBroadcast = 8;
#endif

/// Up to so many rows, dims in the lanes are faster than rows in them (few_rows.h).
template <class T>
constexpr int kFewRows = kLanes<T> / 2;

/// So many of them read half precision where it is; each pair of rows converts it anew, and for
/// more it is converted once, into a buffer.
constexpr int kRowsOnStoredHalf = 4;

/// Where so many panels or fewer share a tile, packing it costs more than it saves.
constexpr int kUnpackedPanels = 2;

/// Fewer rows than this leave pairs of bf16 (bf16_pairs.h) to the kernels of avx512, which need not
/// pack a tile for them.
constexpr int kLeastPairedRows = 8;

/// Keys of a tile: scores of a panel stay in L1 (128 keys x 32 rows x 4 bytes = 16 KiB), and
/// packing is spread over enough rows.
constexpr int kTileKeys = 128;

/// Rows share a packed key tile; past 16 panels nothing is gained, and smaller blocks balance
/// better.
constexpr int kMostPanels = 16;

/// Scratch of an item's panels in elements: half of a 1 MiB L2.
constexpr int kPanelFloats = 128 * 1024;

/// Items of uneven size keep the threads busy to the end if there are a few for each. Blocks of
/// rows become smaller for that, down to two panels (one would pay for packing alone).
constexpr int kItemsPerThread = 4;
constexpr int kLeastPanels = 2;

/// Where the smallest blocks of rows make fewer items than this, the keys are cut into chunks of at
/// least 4 tiles (flash-decoding).
constexpr int kEnoughItems = 16;
constexpr int kLeastTilesPerChunk = 4;

FUSED_ATTENTION_END_ISA_NAMESPACE
