// The tiles that the CUDA kernels are compiled for, each row with what fixed it.
//
// Limits: 65536 registers an SM and 255 a thread; shared memory 163 KB (sm_80, sm_87) or 227 KB
// (sm_90, sm_100) a block, of 164 and 228 KB an SM, 1 KB of it reserved for each block. 99 of 100
// KB on sm_86, sm_89 and sm_120: where a kernel takes more, one of the `kSmall` tables does its
// work.
#pragma once

#include <cstdint>

namespace fused_attention::cuda {

/// Shared memory of a block that every GPU from sm_80 on has.
inline constexpr int kLeastSharedBytes = 99 << 10;

/// Tile of a forward kernel on tensor cores. It serves every D <= dim_qk; a larger Dv than dim_v is
/// cut into slices of dim_v columns, each a block of its own that computes the scores again.
struct ForwardTile {
  int dim_qk;
  int dim_v;
  int rows;           // query rows of a block
  int keys;           // keys of a tile
  int stages;         // tiles of K and V in shared memory; 1: V arrives during Q K^T, K during P V
  int blocks_per_sm;  // that registers have to leave room for

  constexpr int warps() const { return rows < 64 ? rows / 16 : 4; }
  constexpr int threads() const { return warps() * 32; }
};

/// Plain problems: band masks only, 16-byte aligned rows, positive scale. Two 16-row fragments for
/// each warp halve the reads of K and V from shared memory, which otherwise bind before the tensor
/// cores do; where the output of 32 rows does not fit into registers it is one.
inline constexpr ForwardTile kPlainForwardTiles[] = {
    {64, 64, 128, 64, 2, 2},    // registers: 64 output + 64 scores a thread; 50 KB
    {96, 96, 128, 64, 1, 2},    // 96 + 64; 66 KB
    {128, 128, 128, 64, 1, 2},  // 128 + 64, all 255 used; 66 KB
    {192, 128, 64, 64, 1, 2},   // 64 + 32: 32 rows a warp would be 192, and Q 48 KB; 65 KB
    {256, 256, 64, 32, 1, 2},   // 128 + 16; 64 keys would be 97 KB, one block an SM on sm_80; 65 KB
    {576, 256, 64, 32, 1, 1},   // 128 + 16; 64 keys would be 176 KB, more than sm_80 has; 125 KB
};

/// Everything else: dense masks (their tile takes shared memory, too), any strides, any scale. The
/// additional paths need registers: 16 rows a warp.
inline constexpr ForwardTile kGeneralForwardTiles[] = {
    {64, 64, 64, 64, 1, 2},    // 43 KB
    {128, 128, 64, 64, 1, 2},  // 67 KB
    {256, 256, 64, 32, 1, 2},  // 75 KB
    {576, 256, 64, 32, 1, 1},  // 135 KB
};

/// In place of those that take more than kLeastSharedBytes: for plain problems, too.
inline constexpr ForwardTile kSmallForwardTiles[] = {
    {576, 256, 32, 32, 1, 1},  // 94 KB; 64 rows and 16 keys would be 101 KB without a mask
};

/// Where rows are so few that all of a key-value head fit into one block, and blocks so few that
/// most multiprocessors would have none, the keys are cut into chunks, each a block of the kernels
/// for everything else.
inline constexpr int kLeastTilesOfChunk = 4;  // so that merging costs little beside reading K and V

/// Merges the chunks of a row.
struct MergeTile {
  int rows;         // of a block, each a warp's
  int most_chunks;  // their weights lie in shared memory
  int blocks_per_sm;
};
inline constexpr MergeTile kMergeTile = {4, 256, 4};

/// Tiles of the backward kernels on tensor cores, for D and Dv up to `dim`. A warp has 16 rows of
/// the block. Gradients of more than `columns` columns are cut into slices, each a block of its own
/// that computes the scores and their gradients again.
struct BackwardTile {
  int dim;
  int columns;
  int rows;           // query rows: of a block for dQ, of a tile for dK and dV
  int keys;           // keys: of a tile for dQ, of a block for dK and dV
  int stages;         // tiles in shared memory; 1: nothing is copied while a tile is used
  int blocks_per_sm;  // that registers have to leave room for
  /// Places of a tile's two operands in shared memory. In 1 they take turns, the first one twice:
  /// less memory, for half as many copies more. Never 0 or false: compilers differ in how they
  /// spell a template argument that ends in one, and the report on the kernels could not tell whose
  /// it is.
  int places = 2;
};

/// dQ: columns / 2 accumulators a thread, and as many scores and their gradients as a tile has
/// keys / 2.
inline constexpr BackwardTile kQueryGradientTiles[] = {
    {64, 64, 64, 64, 2, 2},    // 32 + 64 registers; 50 KB, with masks 68 KB
    {128, 128, 64, 64, 1, 2},  // 64 + 64; 66 KB, with masks 84 KB
    {256, 256, 64, 32, 1, 1},  // 128 + 32; 98 KB, with masks 108 KB
    {576, 192, 32, 32, 1, 1},  // 96 + 32; 64 rows would be 218 KB, more than sm_80 has; 150 KB
};

/// dK and dV: columns / 2 accumulators a thread for each gradient, rows / 2 scores and their
/// gradients. Where both gradients do not fit each has a launch of its own.
inline constexpr BackwardTile kKeyGradientTiles[] = {
    {64, 64, 64, 64, 2, 2},    // 64 + 64 registers; 50 KB
    {128, 128, 32, 64, 2, 2},  // 128 + 32; 65 KB
    {256, 256, 32, 64, 1, 1},  // 128 + 32; 97 KB
    {576, 192, 32, 32, 1, 1},  // 96 + 32; 64 keys would be 217 KB; 150 KB
};

/// In place of those that take more than kLeastSharedBytes, the two of one `dim` together: for
/// plain problems, too. Tiles are half as long, and blocks as large as before: a warp needs 16 of
/// their rows or keys.
inline constexpr BackwardTile kSmallQueryGradientTiles[] = {
    {256, 256, 64, 16, 1, 1},     // 88 KB
    {576, 192, 32, 16, 1, 1, 1},  // 94 KB; K and V side by side would be 112 KB
};
inline constexpr BackwardTile kSmallKeyGradientTiles[] = {
    {256, 256, 16, 64, 1, 1},     // 85 KB
    {576, 192, 16, 32, 1, 1, 1},  // 93 KB; Q and dO side by side would be 111 KB
};

/// Tile of a kernel without tensor cores, for fp32 and fp64 in their own precision. It serves every
/// D and Dv, `chunk` columns of the operands at a time; sums of more than `columns` columns are cut
/// into slices, each a block of its own that computes the scores again.
struct ExactTile {
  int columns;        // of the sums: of V, or of the operand whose gradient is computed
  int rows;           // query rows: of a block, or of a tile for dK and dV
  int keys;           // keys: of a tile, or of a block for dK and dV
  int chunk;          // columns
  int blocks_per_sm;  // that registers have to leave room for

  static constexpr int kLanes = 16;  // a block is kLanes x kLanes threads
  static constexpr int kThreads = kLanes * kLanes;
};

/// Each thread has rows / 16 x keys / 16 scores and rows / 16 x columns / 16 sums in registers.
inline constexpr ExactTile kFloatForwardTiles[] = {
    {64, 64, 64, 32, 2},   // 16 + 16; 54 KB
    {128, 64, 32, 32, 2},  // 32 + 8, with 64 keys 32 + 16 and a spill; 40 KB
    {256, 64, 32, 32, 1},  // 64 + 8, more than the 128 registers of two blocks an SM; 57 KB
};
inline constexpr ExactTile kDoubleForwardTiles[] = {
    {64, 32, 32, 32, 2},   // 43 KB
    {256, 32, 32, 32, 1},  // 92 KB
};

/// dQ: the gradients of the scores are as many as the scores.
inline constexpr ExactTile kFloatQueryGradientTiles[] = {
    {64, 64, 64, 32, 2},   // 16 + 2 x 16; 54 KB
    {128, 64, 32, 32, 2},  // 32 + 2 x 8, with 64 keys 2 x 16 and a spill; 41 KB
    {256, 64, 32, 32, 1},  // 64 + 2 x 8; 57 KB
};
inline constexpr ExactTile kDoubleQueryGradientTiles[] = {
    {64, 32, 32, 32, 2},   // 44 KB
    {256, 32, 32, 32, 1},  // 92 KB
};

/// dK and dV: keys / 16 x rows / 16 scores and their gradients, keys / 16 x columns / 16 of each
/// sum. One launch computes both sums where D and Dv fit into the columns of any tile but the last;
/// that one has a launch for each sum.
inline constexpr ExactTile kFloatKeyGradientTiles[] = {
    {64, 32, 64, 32, 2},   // 2 x 16 + 2 x 8, with 64 rows 2 x 16 and a spill; 32 KB
    {128, 32, 64, 32, 1},  // 2 x 32 + 2 x 8, more than the 128 registers of two blocks; 40 KB
    {256, 32, 64, 32, 1},  // 64 + 2 x 8; 56 KB
};
inline constexpr ExactTile kDoubleKeyGradientTiles[] = {
    {64, 32, 32, 32, 1},   // 2 x 8 + 2 x 4 doubles; 43 KB
    {256, 32, 32, 32, 1},  // 92 KB
};

}  // namespace fused_attention::cuda
