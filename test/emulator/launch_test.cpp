// Decisions of the host before a launch.
#include <gtest/gtest.h>

#include <cstdint>

#include "cuda/forward_launch.h"

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

}  // namespace
}  // namespace fused_attention::test
