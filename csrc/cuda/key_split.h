// Whether few query rows share their keys between blocks. Torch-free.
#pragma once

#include <cstdint>

#include "../core/problem.h"
#include "../core/schedule.h"
#include "launch.h"
#include "tile_config.h"

namespace fused_attention::cuda {

/// Blocks that share the keys of a row, and room for what they leave.
struct KeySplit {
  int chunks = 1;
  void* partials = nullptr;
};

/// Numbers of the computing type that they leave: see kernels/partials.h.
inline std::int64_t partial_numbers(const core::Sizes& sizes, int chunks) {
  return chunks == 1 ? 0 : chunks * sizes.batch * sizes.heads_q * sizes.seq_q * (2 + sizes.dim_v);
}

/// Chunks of the keys, from shapes and the number of multiprocessors only: more than one where rows
/// alone would leave most multiprocessors idle, which takes few rows that see many keys.
inline int forward_chunks(const core::Problem& problem, int multiprocessors) {
  constexpr std::int64_t kTileKeys = 64;
  constexpr std::int64_t kMostRows = 64;  // of a block
  const core::Sizes& sizes = problem.sizes;
  const core::RowSchedule schedule = schedule_blocks(sizes, kMostRows);
  if (schedule.blocks != 1 || schedule.heads * 2 > multiprocessors) return 1;
  const std::int64_t band = problem.band.upper - problem.band.lower + sizes.seq_q;
  const std::int64_t chunks = core::key_chunks(schedule, core::min64(sizes.seq_k, band), kTileKeys,
                                               multiprocessors, kLeastTilesOfChunk);
  return static_cast<int>(core::min64(chunks, kMergeTile.most_chunks));
}

}  // namespace fused_attention::cuda
