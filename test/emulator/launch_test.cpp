// Decisions of the host before a launch.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "cuda/backward_launch.h"

namespace fused_attention::test {
namespace {

// Chunks are copied by instructions that fault on a GPU, or read other elements, where an address
// is not a multiple of 16. The emulator sees that only in the shapes that its tests run.
TEST(LaunchTest, RowsAreCopiedInChunksWhereEveryRowBeginsAtAMultipleOf16Bytes) {
  alignas(16) static std::uint16_t memory[64];
  const core::ConstOperand aligned{memory, 4096, 1024, 72, 1};
  const auto in_chunks = [](core::ConstOperand x, std::int64_t dim) {
    return cuda::is_in_chunks(x, dim, sizeof(std::uint16_t));
  };
  const auto with = [&](auto change) {
    core::ConstOperand x = aligned;
    change(x);
    return in_chunks(x, 64);
  };
  EXPECT_TRUE(in_chunks(aligned, 64));
  EXPECT_FALSE(in_chunks(aligned, 60));
  EXPECT_FALSE(with([](auto& x) { x.data = memory + 4; }));
  EXPECT_FALSE(with([](auto& x) { x.stride_d = 2; }));
  EXPECT_FALSE(with([](auto& x) { x.stride_s = 68; }));
  EXPECT_FALSE(with([](auto& x) { x.stride_h = 1028; }));
  EXPECT_FALSE(with([](auto& x) { x.stride_b = 4100; }));
  // Four floats fill a chunk, two doubles do.
  EXPECT_TRUE(cuda::is_in_chunks(core::ConstOperand{memory, 4096, 1024, 68, 1}, 64, 4));
  EXPECT_FALSE(cuda::is_in_chunks(core::ConstOperand{memory, 4096, 1024, 67, 1}, 64, 8));
}

// The backward kernels have one answer for all operands.
TEST(LaunchTest, BackwardCopiesRowsInChunksWhereThoseOfEveryOperandAre) {
  alignas(16) static std::uint16_t memory[64];
  constexpr int kElementBytes = sizeof(std::uint16_t);
  const core::ConstOperand in{memory, 4096, 1024, 64, 1};
  const core::Operand out{memory, 4096, 1024, 64, 1};
  core::BackwardProblem aligned;
  aligned.problem.sizes = {2, 4, 4, 16, 16, 64, 32};
  aligned.problem.query = aligned.problem.key = aligned.problem.value = in;
  aligned.output = aligned.grad_output = in;
  aligned.grad_query = aligned.grad_key = aligned.grad_value = out;
  EXPECT_TRUE(cuda::is_in_chunks(aligned, kElementBytes));
  const auto with = [&](auto change) {
    core::BackwardProblem call = aligned;
    change(call);
    return cuda::is_in_chunks(call, kElementBytes);
  };
  EXPECT_FALSE(with([](auto& x) { x.problem.query.stride_s = 65; }));
  EXPECT_FALSE(with([](auto& x) { x.problem.key.stride_s = 65; }));
  EXPECT_FALSE(with([](auto& x) { x.problem.value.stride_s = 65; }));
  EXPECT_FALSE(with([](auto& x) { x.grad_output.stride_s = 65; }));
  EXPECT_FALSE(with([](auto& x) { x.grad_query.stride_s = 65; }));
  EXPECT_FALSE(with([](auto& x) { x.grad_key.stride_s = 65; }));
  EXPECT_FALSE(with([](auto& x) { x.grad_value.stride_s = 65; }));
  EXPECT_FALSE(with([](auto& x) { x.problem.sizes.dim_qk = 60; }));
  EXPECT_FALSE(with([](auto& x) { x.problem.sizes.dim_v = 60; }));
  // Nobody asks for this one.
  EXPECT_TRUE(with([](auto& x) {
    x.grad_key.stride_s = 65;
    x.grad_key.data = nullptr;
  }));
}

TEST(LaunchTest, PlainKernelsTakeBandsAndPositiveScalesFarFromTheLimits) {
  core::Problem problem;
  EXPECT_TRUE(cuda::is_plain(problem, true, 0.125F));
  EXPECT_FALSE(cuda::is_plain(problem, false, 0.125F));
  for (const float scale :
       {0.0F, -1.0F, 0x1p-110F, 0x1p110F, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_FALSE(cuda::is_plain(problem, true, scale)) << scale;
  }
  problem.mask.data = &problem;
  EXPECT_FALSE(cuda::is_plain(problem, true, 0.125F));
}

TEST(LaunchTest, GridHasABlockForEveryOneThatIsAskedFor) {
  constexpr std::int64_t kMostX = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t blocks : {std::int64_t{1}, std::int64_t{70000}, kMostX - 1, kMostX,
                                    kMostX + 1, 2 * kMostX, 2 * kMostX + 1}) {
    const cuda::Launch launch = cuda::make_launch(blocks, 128, 1000);
    EXPECT_LE(launch.grid_x, kMostX);
    EXPECT_GE(launch.grid_x * launch.grid_y, blocks);
    EXPECT_LT(launch.grid_x * (launch.grid_y - 1), blocks) << "a row of blocks too many";
    EXPECT_EQ(launch.threads, 128);
    EXPECT_EQ(launch.shared_bytes, 1000);
  }
}

}  // namespace
}  // namespace fused_attention::test
