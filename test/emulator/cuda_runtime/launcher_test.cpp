// What the host asks of CUDA's runtime, from csrc/cuda/run.h down: the very .cu files, on a runtime
// that records. Results are the other tests' business: no kernel runs here, and no tensor exists.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "cuda/backward_launch.h"
#include "emulator/cuda_runtime/launcher_test.h"

namespace fused_attention::test {
namespace {

/// Rows of the group of a key-value head, in blocks of a kernel's.
std::int64_t blocks_of(const core::Sizes& s, std::int64_t rows) {
  return s.batch * s.heads_kv * core::ceil_div(s.heads_q / s.heads_kv * s.seq_q, rows);
}

TEST_F(LauncherTest, HalfPrecisionForwardStartsTheTileOfItsHeadDims) {
  const core::Sizes sizes{3, 6, 2, 100, 70, 64, 64};
  constexpr auto kPlain = cuda::kPlainForwardTiles[0];
  constexpr auto kGeneral = cuda::kGeneralForwardTiles[0];
  ASSERT_TRUE(forward(problem_of(DType::kBFloat16, sizes)));
  core::BackwardProblem negative = problem_of(DType::kFloat16, sizes);
  negative.problem.scale = -1;
  ASSERT_TRUE(forward(negative));
  const auto launches = runtime.launches();
  ASSERT_EQ(launches.size(), 2U);
  expect_launch<cuda::ForwardConfig<cuda::BFloat16, kPlain, false>>(launches[0],
                                                                    blocks_of(sizes, kPlain.rows));
  expect_named(launches[0], {"attention_kernel<", "ForwardConfig<", "BFloat16", "false"});
  expect_launch<cuda::ForwardConfig<cuda::Float16, kGeneral, true>>(
      launches[1], blocks_of(sizes, kGeneral.rows));
  expect_named(launches[1], {"attention_kernel<", "ForwardConfig<", "::Float16", "true"});
}

TEST_F(LauncherTest, ColumnsBeyondTheLastTileAreBlocksOfTheirOwn) {
  const core::Sizes sizes{1, 4, 2, 50, 70, 576, 512};
  constexpr auto kTile = cuda::kPlainForwardTiles[std::size(cuda::kPlainForwardTiles) - 1];
  ASSERT_TRUE(forward(problem_of(DType::kBFloat16, sizes)));
  ASSERT_EQ(runtime.launches().size(), 1U);
  expect_launch<cuda::ForwardConfig<cuda::BFloat16, kTile, false>>(
      runtime.launches()[0],
      blocks_of(sizes, kTile.rows) * core::ceil_div(sizes.dim_v, kTile.dim_v));
}

TEST_F(LauncherTest, SinglePrecisionAndDoubleHaveKernelsOfTheirOwn) {
  const core::Sizes sizes{2, 4, 2, 100, 70, 64, 64};
  ASSERT_TRUE(forward(problem_of(DType::kFloat32, sizes)));
  ASSERT_TRUE(forward(problem_of(DType::kFloat64, sizes)));
  const auto launches = runtime.launches();
  ASSERT_EQ(launches.size(), 2U);
  constexpr auto kFloat = cuda::kFloatForwardTiles[0];
  constexpr auto kDouble = cuda::kDoubleForwardTiles[0];
  expect_launch<cuda::ExactForwardConfig<float, kFloat>>(launches[0],
                                                         blocks_of(sizes, kFloat.rows));
  expect_named(launches[0], {"ExactForwardConfig<float"});
  expect_launch<cuda::ExactForwardConfig<double, kDouble>>(launches[1],
                                                           blocks_of(sizes, kDouble.rows));
  expect_named(launches[1], {"ExactForwardConfig<double"});
}

TEST_F(LauncherTest, ChunksOfKeysAreMergedAfterThem) {
  const core::Sizes sizes{2, 4, 2, 5, 4000, 64, 64};
  ASSERT_TRUE(forward(problem_of(DType::kBFloat16, sizes), 7));
  const auto launches = runtime.launches();
  ASSERT_EQ(launches.size(), 2U);
  constexpr auto kTile = cuda::kGeneralForwardTiles[0];
  expect_launch<cuda::ForwardConfig<cuda::BFloat16, kTile, true>>(launches[0],
                                                                  7 * blocks_of(sizes, kTile.rows));
  using Merge = cuda::MergeConfig<cuda::BFloat16>;
  expect_launch<Merge>(launches[1], core::ceil_div(2 * 4 * 5, Merge::kTile.rows));
  expect_named(launches[1], {"MergeConfig<"});
}

TEST_F(LauncherTest, BackwardStartsTheRowsFirst) {
  const core::Sizes sizes{2, 6, 2, 100, 333, 64, 64};
  ASSERT_TRUE(backward(problem_of(DType::kFloat16, sizes)));
  const auto launches = runtime.launches();
  ASSERT_EQ(launches.size(), 2U);
  constexpr auto kRows = cuda::kQueryGradientTiles[0];
  constexpr auto kKeys = cuda::kKeyGradientTiles[0];
  expect_launch<cuda::QueryGradientConfig<cuda::Float16, kRows, false>>(
      launches[0], blocks_of(sizes, kRows.rows));
  expect_named(launches[0], {"QueryGradientConfig<", "::Float16"});
  expect_launch<cuda::KeyGradientConfig<cuda::Float16, kKeys, cuda::KeyGradients::kBoth, false>>(
      launches[1], 2 * 2 * core::ceil_div(333, kKeys.keys));
  expect_named(launches[1], {"KeyGradientConfig<", "::Float16"});
}

TEST_F(LauncherTest, LargeHeadDimsHaveALaunchForEachGradientThatIsWanted) {
  const core::Sizes sizes{1, 2, 2, 40, 70, 576, 512};
  const std::pair<DType, const char*> types[] = {{DType::kBFloat16, "::BFloat16"},
                                                 {DType::kFloat32, "Config<float"},
                                                 {DType::kFloat64, "Config<double"}};
  for (const auto& [dtype, type] : types) {
    for (int wanted = 0; wanted < 8; ++wanted) {
      runtime = CudaRuntime();
      core::BackwardProblem call = problem_of(dtype, sizes);
      if ((wanted & 1) == 0) call.grad_query.data = nullptr;
      if ((wanted & 2) == 0) call.grad_key.data = nullptr;
      if ((wanted & 4) == 0) call.grad_value.data = nullptr;
      ASSERT_TRUE(backward(call));
      const auto launches = runtime.launches();
      ASSERT_EQ(launches.size(), 1U + ((wanted >> 1) & 1) + (wanted >> 2)) << wanted;
      // The first prepares the rows for the others, whether dQ is wanted or not.
      expect_named(launches[0], {"QueryGradientConfig<", type});
      for (std::size_t n = 1; n < launches.size(); ++n) {
        expect_named(launches[n], {"KeyGradientConfig<", type});
      }
      for (const KernelEvent& launch : launches) EXPECT_EQ(launch.stream, stream());
    }
  }
}

TEST_F(LauncherTest, SharedMemoryIsAskedForBeforeEveryLaunchOnEveryDevice) {
  const core::BackwardProblem call = problem_of(DType::kBFloat16, {1, 1, 1, 40, 70, 576, 576});
  for (const int device : {0, 1, 0}) {
    runtime.device = device;
    ASSERT_TRUE(forward(call));
    ASSERT_TRUE(backward(call));
  }
  ASSERT_EQ(runtime.events.size(), 3U * 2 * 4);
  for (std::size_t n = 0; n < runtime.events.size(); n += 2) {
    const KernelEvent& limit = runtime.events[n];
    const KernelEvent& launch = runtime.events[n + 1];
    EXPECT_FALSE(limit.is_launch);
    EXPECT_TRUE(launch.is_launch);
    EXPECT_EQ(limit.kernel, launch.kernel);
    EXPECT_EQ(limit.device, launch.device);
    EXPECT_EQ(limit.shared_bytes, launch.shared_bytes);
    EXPECT_GT(launch.shared_bytes, 48 << 10);
  }
}

TEST_F(LauncherTest, EveryKernelFitsTheSharedMemoryOfSm80) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    for (const std::int64_t dim : {40, 64, 96, 128, 192, 256, 320, 576}) {
      core::BackwardProblem call = problem_of(dtype, {1, 2, 1, 100, 200, dim, dim});
      for (const double scale : {1.0, -1.0}) {
        call.problem.scale = scale;
        EXPECT_NO_THROW(forward(call));
        EXPECT_NO_THROW(forward(call, 2));
        EXPECT_NO_THROW(backward(call));
      }
    }
  }
}

TEST_F(LauncherTest, MoreBlocksThanAGridHasInOneDimensionTakeTwo) {
  constexpr std::int64_t kMostX = std::numeric_limits<std::int32_t>::max();
  const core::Sizes sizes{std::int64_t{1} << 28, 16, 16, 1, 1, 8, 8};
  ASSERT_TRUE(forward(problem_of(DType::kBFloat16, sizes)));
  const KernelEvent& launch = runtime.launches()[0];
  EXPECT_LE(launch.grid.x, kMostX);
  EXPECT_EQ(launch.grid.y, 3U);  // 2^32 blocks
  EXPECT_GE(std::int64_t{launch.grid.x} * launch.grid.y, std::int64_t{1} << 32);
}

}  // namespace
}  // namespace fused_attention::test
