// The forward kernels in the emulator against the fp64 formula.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "emulator/kernel_call.h"

namespace fused_attention::test {
namespace {

class ForwardTest : public testing::TestWithParam<Case> {};

TEST_P(ForwardTest, MatchesTheFormulaWithoutFaultsOrBankConflicts) {
  Call call(GetParam());
  const emulator::Report report = run_forward(call);
  EXPECT_TRUE(report.clean()) << report.text();
  EXPECT_EQ(loop_conflicts(report), 0) << report.text();
  expect_forward(call, call.expected());
}

std::vector<Case> forward_cases() {
  std::vector<Case> list;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    const std::string type = name_of(dtype) + "_";
    const auto add = [&](Case c) {
      c.dtype = dtype;
      c.name = type + c.name;
      list.push_back(c);
    };
    add({.name = "d64", .sizes = {1, 1, 1, 130, 150, 64, 64}});
    add({.name = "d64_causal", .sizes = {1, 2, 1, 150, 150, 64, 64}, .causal = true});
    add({.name = "d64_gqa3", .sizes = {2, 6, 2, 45, 70, 64, 64}, .causal = true, .offset = 20});
    add({.name = "d40_window", .sizes = {1, 1, 1, 140, 300, 40, 24}, .left = 70, .right = 10});
    add({.name = "d96", .sizes = {1, 2, 2, 33, 130, 96, 96}, .causal = true, .offset = 97});
    add({.name = "d128", .sizes = {1, 4, 1, 40, 200, 128, 128}, .causal = true, .offset = 160});
    add({.name = "d192_128", .sizes = {1, 2, 1, 40, 100, 192, 128}, .causal = true});
    add({.name = "d256", .sizes = {1, 1, 1, 70, 100, 256, 256}, .causal = true});
    add({.name = "d576_512", .sizes = {1, 4, 1, 20, 50, 576, 512}, .causal = true, .offset = 3});
    add({.name = "d576_576", .sizes = {1, 1, 1, 5, 40, 576, 576}});
    add({.name = "rows_that_see_nothing",
         .sizes = {1, 2, 1, 90, 30, 64, 64},
         .offset = -20,
         .left = 5});
    add({.name = "no_keys", .sizes = {1, 2, 1, 9, 0, 64, 64}});
    add({.name = "negative_offset",
         .sizes = {1, 2, 1, 90, 90, 64, 64},
         .causal = true,
         .offset = -50});
    add({.name = "bool_mask", .sizes = {2, 4, 2, 37, 140, 64, 64}, .mask = MaskKind::kBool});
    add({.name = "bool_mask_causal",
         .sizes = {1, 2, 1, 70, 90, 128, 128},
         .causal = true,
         .mask = MaskKind::kBool});
    // The second block of rows sees nothing of its first tiles of keys, and something later.
    add({.name = "bool_blocks",
         .sizes = {1, 1, 1, 130, 300, 64, 64},
         .mask = MaskKind::kBoolBlocks});
    add({.name = "key_mask", .sizes = {2, 2, 1, 30, 100, 64, 64}, .mask = MaskKind::kBoolPerKey});
    for (const DType mask : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
      add({.name = "float_mask" + std::to_string(static_cast<int>(mask)),
           .sizes = {1, 2, 1, 40, 75, 64, 64},
           .mask = MaskKind::kFloatWithHidden,
           .mask_dtype = mask});
    }
    add({.name = "strided_d64",
         .sizes = {2, 4, 2, 35, 70, 64, 64},
         .causal = true,
         .strided = true});
    add({.name = "strided_d17", .sizes = {2, 4, 2, 35, 70, 17, 5}, .strided = true});
    add({.name = "strided_d100",
         .sizes = {1, 2, 1, 35, 70, 100, 130},
         .causal = true,
         .strided = true});
    add({.name = "strided_mask_d200",
         .sizes = {1, 2, 1, 35, 70, 200, 200},
         .mask = MaskKind::kFloatWithHidden,
         .strided = true});
    add({.name = "strided_mask_d300",
         .sizes = {1, 2, 1, 9, 40, 300, 310},
         .mask = MaskKind::kBool,
         .strided = true});
    add({.name = "d1", .sizes = {1, 1, 1, 3, 5, 1, 1}});
    add({.name = "one_row", .sizes = {3, 8, 2, 1, 200, 64, 64}});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Cases, ForwardTest, testing::ValuesIn(forward_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fused_attention::test
