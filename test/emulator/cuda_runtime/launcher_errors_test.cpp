// What starts no kernel: nothing to do, no kernel for it, or an error of CUDA's runtime.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "emulator/cuda_runtime/launcher_test.h"

namespace fused_attention::test {
namespace {

TEST_F(LauncherTest, EmptyProblemsAskForNothing) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    const core::BackwardProblem no_batch = problem_of(dtype, {0, 2, 2, 5, 7, 64, 64});
    EXPECT_TRUE(forward(no_batch));
    EXPECT_TRUE(forward(no_batch, 3));
    EXPECT_TRUE(backward(no_batch));
    const core::BackwardProblem no_rows = problem_of(dtype, {2, 2, 2, 0, 7, 64, 64});
    EXPECT_TRUE(forward(no_rows));
    EXPECT_TRUE(forward(no_rows, 3));
    const core::BackwardProblem no_heads = problem_of(dtype, {2, 0, 0, 5, 7, 64, 64});
    EXPECT_TRUE(forward(no_heads));
    EXPECT_TRUE(backward(no_heads));
    EXPECT_TRUE(runtime.events.empty()) << runtime.events[0].kernel;
  }
}

TEST_F(LauncherTest, WithoutKeysOnlyTheRowsAreStarted) {
  const core::BackwardProblem call = problem_of(DType::kBFloat16, {2, 2, 2, 5, 0, 64, 64});
  EXPECT_TRUE(forward(call));
  EXPECT_TRUE(backward(call));
  const auto launches = runtime.launches();
  ASSERT_EQ(launches.size(), 2U);
  expect_named(launches[0], {"ForwardConfig<"});
  expect_named(launches[1], {"QueryGradientConfig<"});
}

TEST_F(LauncherTest, ProblemsWithoutKernelsStartNothing) {
  EXPECT_FALSE(forward(problem_of(DType::kBFloat16, {1, 1, 1, 5, 5, 584, 64})));
  EXPECT_FALSE(forward(problem_of(DType::kFloat16, {1, 1, 1, 5, 5, 580, 64})));
  EXPECT_FALSE(backward(problem_of(DType::kFloat16, {1, 1, 1, 5, 5, 64, 584})));
  EXPECT_FALSE(forward(problem_of(DType::kBool, {1, 1, 1, 5, 5, 64, 64})));
  EXPECT_FALSE(backward(problem_of(DType::kBool, {1, 1, 1, 5, 5, 64, 64})));
  EXPECT_TRUE(runtime.events.empty());
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(LauncherTest, FailingLaunchIsAnErrorAndEndsTheCall) {
  runtime.launch_error = cudaErrorNoKernelImageForDevice;
  const core::BackwardProblem call = problem_of(DType::kBFloat16, {1, 1, 1, 40, 70, 64, 64});
  for (const auto& run :
       {std::function([&] { forward(call); }), std::function([&] { forward(call, 3); }),
        std::function([&] { backward(call); })}) {
    runtime.events.clear();
    const std::string text = error_of(run);
    EXPECT_NE(text.find("fused_attention::attention: "), std::string::npos) << text;
    EXPECT_NE(text.find("no kernel image is available"), std::string::npos) << text;
    EXPECT_EQ(runtime.events.size(), 1U);  // the first kernel's shared memory, and nothing after it
    // The next call must not find this one's error.
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
}

TEST_F(LauncherTest, GpuWithTooLittleSharedMemoryIsNamedAsSuch) {
  runtime.most_shared_bytes = 60 << 10;
  const core::BackwardProblem large = problem_of(DType::kBFloat16, {1, 1, 1, 40, 70, 576, 512});
  const std::string text = error_of([&] { forward(large); });
  ASSERT_EQ(runtime.events.size(), 1U);
  const int bytes = runtime.events[0].shared_bytes;
  EXPECT_NE(text.find("expected a GPU with " + std::to_string(bytes)), std::string::npos) << text;
  EXPECT_NE(text.find(std::to_string(60 << 10)), std::string::npos) << text;
  EXPECT_TRUE(runtime.launches().empty());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_TRUE(forward(problem_of(DType::kBFloat16, {1, 1, 1, 40, 70, 64, 64})));
}

TEST_F(LauncherTest, MultiprocessorsAreThoseOfTheDevice) {
  runtime.multiprocessors = 132;
  EXPECT_EQ(cuda::multiprocessors(1), 132);
  const std::string text = error_of([] { cuda::multiprocessors(2); });
  EXPECT_NE(text.find("multiprocessors failed: invalid device ordinal"), std::string::npos) << text;
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace fused_attention::test
