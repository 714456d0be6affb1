// Launches, and limits of all kernels. Torch-free.
#pragma once

#include <cstdint>
#include <limits>

#include "../core/mask.h"
#include "../core/schedule.h"

namespace fused_attention::cuda {

/// Lengths and numbers of heads that kernels hold in an int, with room for sums.
constexpr std::int64_t kLongestSequence = std::int64_t{1} << 29;

/// The largest D of the kernels on tensor cores, and the largest Dv of the backward ones.
constexpr std::int64_t kLargestHeadDim = 576;

/// Room for one row's statistics between the backward kernels, in floats, or doubles for fp64.
constexpr std::int64_t kStatisticsNumbers = 4;

/// The rows of every (b, key-value head) pair in blocks of `block_rows`.
inline core::RowSchedule schedule_blocks(const core::Sizes& sizes, std::int64_t block_rows) {
  return core::schedule_rows(sizes, {.panel_rows = block_rows, .panels = 1}, /*floats_per_row=*/1);
}

struct Launch {
  std::int64_t grid_x = 0;
  std::int64_t grid_y = 1;
  int threads = 0;
  int shared_bytes = 0;
};

/// A grid of at least `blocks` blocks; kernels ignore those beyond.
inline Launch make_launch(std::int64_t blocks, int threads, int shared_bytes) {
  constexpr std::int64_t kMostX = std::numeric_limits<std::int32_t>::max();
  const std::int64_t x = core::min64(blocks, kMostX);
  return {x, core::ceil_div(blocks, x), threads, shared_bytes};
}

}  // namespace fused_attention::cuda
