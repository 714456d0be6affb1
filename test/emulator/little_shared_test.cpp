// Half precision on GPUs whose blocks have the least shared memory: the kernels that take the place
// of those that need more, forward and backward, against the fp64 formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/backward_launch.h"
#include "emulator/kernel_call.h"

namespace fused_attention::test {
namespace {

class LittleSharedTest : public testing::TestWithParam<Case> {};

TEST_P(LittleSharedTest, MatchesTheFormulaWithoutFaultsOrBankConflicts) {
  Call call(GetParam());
  const Expected expected = call.expected();
  // With as many multiprocessors, a row that sees many keys shares them between blocks.
  constexpr int kMultiprocessors = 16;
  const emulator::Report forward = run_forward(call, 0, kMultiprocessors, cuda::kLeastSharedBytes);
  EXPECT_TRUE(forward.clean()) << forward.text();
  EXPECT_EQ(loop_conflicts(forward), 0) << forward.text();
  expect_forward(call, expected);
  const emulator::Report backward = run_backward(call, 0, cuda::kLeastSharedBytes);
  EXPECT_TRUE(backward.clean()) << backward.text();
  EXPECT_EQ(loop_conflicts(backward), 0) << backward.text();
  expect_backward(call, expected);
}

std::vector<Case> little_shared_cases() {
  std::vector<Case> list;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const auto add = [&](Case c) {
      c.dtype = dtype;
      c.name.insert(0, name_of(dtype).append("_"));
      list.push_back(c);
    };
    add({.name = "d256_causal_gqa", .sizes = {1, 4, 2, 37, 90, 256, 256}, .causal = true});
    add({.name = "d256_bool_mask_causal_gqa",
         .sizes = {1, 4, 2, 37, 90, 256, 200},
         .causal = true,
         .offset = 30,
         .mask = MaskKind::kBool,
         .grad_lse = true});
    // Whole tiles are hidden, others seen.
    add({.name = "d256_bool_blocks",
         .sizes = {1, 1, 1, 62, 150, 256, 256},
         .mask = MaskKind::kBoolBlocks});
    add({.name = "d200_strided_float_mask",
         .sizes = {1, 2, 1, 35, 70, 200, 200},
         .mask = MaskKind::kFloatWithHidden,
         .strided = true});
    add({.name = "d576_512_causal_gqa",
         .sizes = {1, 4, 1, 20, 70, 576, 512},
         .causal = true,
         .offset = 3,
         .grad_lse = true});
    add({.name = "d320_300_window", .sizes = {1, 1, 1, 50, 110, 320, 300}, .left = 30, .right = 9});
    add({.name = "d264_576", .sizes = {1, 1, 1, 40, 20, 264, 576}});
    add({.name = "d264_320_bool_blocks",
         .sizes = {1, 1, 1, 62, 150, 264, 320},
         .mask = MaskKind::kBoolBlocks});
    add({.name = "d300_310_strided_bool_mask",
         .sizes = {1, 2, 1, 19, 40, 300, 310},
         .causal = true,
         .offset = 21,
         .mask = MaskKind::kBool,
         .strided = true,
         .grad_lse = true});
    add({.name = "d264_one_row", .sizes = {1, 2, 1, 1, 520, 264, 264}});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Cases, LittleSharedTest, testing::ValuesIn(little_shared_cases()),
                         [](const auto& info) { return info.param.name; });

/// Shared memory of the kernels that it would start, on a device that has so much.
struct SharedBytesLauncher {
  int device_bytes;
  std::vector<int>& started;

  int most_shared_bytes() const { return device_bytes; }
  template <class C>
  void operator()(const cuda::Launch& launch, const typename C::Params& /*params*/) const {
    started.push_back(launch.shared_bytes);
  }
};

template <class T>
std::vector<int> shared_bytes_of_kernels(Call& call, int device_bytes) {
  std::vector<int> started;
  const SharedBytesLauncher launcher{device_bytes, started};
  if constexpr (sizeof(T) == 2) {
    EXPECT_TRUE(cuda::forward_half<T>(call.forward, {}, launcher));
    EXPECT_TRUE(cuda::backward_half<T>(call.backward, nullptr, launcher));
  } else {
    cuda::forward_exact<T>(call.forward, {}, launcher);
    cuda::backward_exact<T>(call.backward, nullptr, launcher);
  }
  EXPECT_GE(started.size(), 3);
  return started;
}

template <class T>
void expect_kernels_fit(DType dtype) {
  for (const std::int64_t dim : {64, 96, 128, 192, 200, 256, 264, 512, 576}) {
    for (const std::int64_t dim_v : {std::int64_t{64}, dim}) {
      for (const MaskKind mask : {MaskKind::kNone, MaskKind::kBool}) {
        Call call(
            {.name = "fits", .dtype = dtype, .sizes = {1, 1, 1, 2, 3, dim, dim_v}, .mask = mask});
        const std::vector<int> usual = shared_bytes_of_kernels<T>(call, 163 << 10);
        const std::vector<int> little = shared_bytes_of_kernels<T>(call, cuda::kLeastSharedBytes);
        EXPECT_LE(*std::max_element(usual.begin(), usual.end()), 163 << 10);
        EXPECT_LE(*std::max_element(little.begin(), little.end()), cuda::kLeastSharedBytes);
        // What fits everywhere has one kernel for all GPUs.
        if (*std::max_element(usual.begin(), usual.end()) <= cuda::kLeastSharedBytes) {
          EXPECT_EQ(usual, little) << "D " << dim;
        }
      }
    }
  }
}

TEST(LittleSharedLaunchTest, EveryProblemHasKernelsForTheLeastSharedMemory) {
  expect_kernels_fit<cuda::BFloat16>(DType::kBFloat16);
  expect_kernels_fit<cuda::Float16>(DType::kFloat16);
  expect_kernels_fit<float>(DType::kFloat32);
  expect_kernels_fit<double>(DType::kFloat64);
}

}  // namespace
}  // namespace fused_attention::test
