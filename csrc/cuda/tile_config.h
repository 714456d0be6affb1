// The tiles that the CUDA kernels are compiled for, each row with what fixed it.
//
// Limits: 65536 registers an SM and 255 a thread; shared memory 163 KB (sm_80) or 227 KB (sm_90) a
// block, of 164 and 228 KB an SM, 1 KB of it reserved for each block.
#pragma once

#include <cstdint>

namespace fused_attention::cuda {

/// Tile of a forward kernel on tensor cores. It serves every D <= dim_qk; a larger Dv than dim_v is
/// cut into slices of dim_v columns, each a block of its own that computes the scores again.
struct ForwardTile {
  int dim_qk;
  int dim_v;
  int rows;           // query rows of a block
  int keys;           // keys of a tile
  int stages;         // tiles of K and V in shared memory; 1: V arrives during Q K^T, K during P V
  int blocks_per_sm;  // that registers have to leave room for

  static constexpr int kWarps = 4;
  constexpr int threads() const { return kWarps * 32; }
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

/// Tiles of the backward kernels on tensor cores, for D and Dv up to `dim`.
struct BackwardTile {
  int dim;
  int rows;           // query rows: of a block for dQ, of a tile for dK and dV
  int keys;           // keys: of a tile for dQ, of a block for dK and dV
  int stages;         // tiles in shared memory; 1: nothing is copied while a tile is used
  int blocks_per_sm;  // that registers have to leave room for

  static constexpr int kWarps = 4;
  constexpr int threads() const { return kWarps * 32; }
};

/// dQ: a warp has 16 rows, dim / 2 accumulators a thread, and as many scores and their gradients as
/// it has keys / 2.
inline constexpr BackwardTile kQueryGradientTiles[] = {
    {64, 64, 64, 2, 2},   // 32 + 64 registers; 50 KB, with masks 68 KB
    {128, 64, 64, 1, 2},  // 64 + 64; 66 KB, with masks 84 KB
    {256, 64, 32, 1, 1},  // 128 + 32; 98 KB, with masks 108 KB
};

/// dK and dV: a warp has 16 keys, dim / 2 accumulators a thread for each gradient. Both do not fit
/// for 256: each has a launch of its own there.
inline constexpr BackwardTile kKeyGradientTiles[] = {
    {64, 64, 64, 2, 2},   // 64 + 64 registers; 50 KB
    {128, 32, 64, 2, 2},  // 128 + 32; 65 KB
    {256, 32, 64, 1, 1},  // 128 + 32; 97 KB
};

/// Tile of a forward kernel without tensor cores, for fp32 and fp64 in their own precision. It
/// serves every D, `chunk` columns at a time.
struct ExactTile {
  int dim_v;
  int rows;
  int keys;
  int chunk;
  int blocks_per_sm;

  static constexpr int kLanes = 16;  // a block is kLanes x kLanes threads
  constexpr int threads() const { return kLanes * kLanes; }
};

/// Each thread has rows / 16 x keys / 16 scores and rows / 16 x dim_v / 16 outputs in registers.
inline constexpr ExactTile kFloatForwardTiles[] = {
    {64, 64, 64, 32, 2},   // 16 + 16; 54 KB
    {128, 64, 64, 32, 2},  // 32 + 16; 70 KB
    {256, 64, 32, 32, 1},  // 64 + 8, more than the 128 registers of two blocks an SM; 57 KB
};
inline constexpr ExactTile kDoubleForwardTiles[] = {
    {64, 32, 32, 32, 2},   // 43 KB
    {256, 32, 32, 32, 1},  // 92 KB
};

}  // namespace fused_attention::cuda
