// From a number of blocks to a grid.
#include "cuda/launch.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace fused_attention::cuda {
namespace {

constexpr std::int64_t kMostX = 0x7FFFFFFF;  // CUDA's limits of a grid
constexpr std::int64_t kMostY = 0xFFFF;

TEST(LaunchTest, GridHoldsEveryBlockAndKeepsToCudasLimits) {
  for (const std::int64_t blocks :
       {std::int64_t{1}, std::int64_t{1000}, kMostX, kMostX + 1, 5 * kMostX + 3, kMostX * kMostY}) {
    const Launch launch = make_launch(blocks, 128, 1024);
    EXPECT_GE(launch.grid_x * launch.grid_y, blocks);
    EXPECT_LT(launch.grid_x * (launch.grid_y - 1), blocks) << "a row of the grid has no block";
    EXPECT_LE(launch.grid_x, kMostX);
    EXPECT_LE(launch.grid_y, kMostY);
    EXPECT_EQ(launch.threads, 128);
    EXPECT_EQ(launch.shared_bytes, 1024);
  }
}

}  // namespace
}  // namespace fused_attention::cuda
