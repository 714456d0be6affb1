// The backward kernels in the emulator against the fp64 formula, and what they promise beyond it.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "emulator/kernel_call.h"
#include "emulator/rounding_bounds.h"

namespace fused_attention::test {
namespace {

void run_both(Call& call, int shared_bytes = kSharedBytes) {
  const emulator::Report forward = run_forward(call, 0, 1, shared_bytes);
  EXPECT_TRUE(forward.clean()) << forward.text();
  const emulator::Report report = run_backward(call, 0, shared_bytes);
  EXPECT_TRUE(report.clean()) << report.text();
  EXPECT_EQ(loop_conflicts(report), 0) << report.text();
}

class BackwardTest : public testing::TestWithParam<Case> {};

TEST_P(BackwardTest, MatchesTheFormulaWithoutFaultsOrBankConflicts) {
  Call call(GetParam());
  run_both(call);
  expect_backward(call, call.expected());
}

std::vector<Case> backward_cases() {
  std::vector<Case> list;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    const auto add = [&](Case c) {
      c.dtype = dtype;
      c.name.insert(0, name_of(dtype).append("_"));
      list.push_back(c);
    };
    add({.name = "d64", .sizes = {1, 1, 1, 130, 150, 64, 64}});
    add({.name = "d64_causal", .sizes = {1, 2, 1, 150, 150, 64, 64}, .causal = true});
    add({.name = "d64_gqa3_lse",
         .sizes = {2, 6, 2, 45, 70, 64, 64},
         .causal = true,
         .offset = 20,
         .grad_lse = true});
    add({.name = "d40_window", .sizes = {1, 1, 1, 140, 300, 40, 24}, .left = 70, .right = 10});
    add({.name = "d128", .sizes = {1, 4, 1, 40, 200, 128, 128}, .causal = true, .offset = 160});
    add({.name = "d192_128", .sizes = {1, 2, 1, 40, 100, 192, 128}, .causal = true});
    add({.name = "d256", .sizes = {1, 1, 1, 70, 100, 256, 256}, .causal = true, .grad_lse = true});
    add({.name = "d320_300",
         .sizes = {1, 2, 1, 20, 40, 320, 300},
         .causal = true,
         .offset = 10,
         .grad_lse = true});
    add({.name = "d64_576", .sizes = {1, 1, 1, 40, 20, 64, 576}});
    add({.name = "d576_512", .sizes = {1, 2, 1, 20, 70, 576, 512}, .causal = true, .offset = 3});
    add({.name = "rows_that_see_nothing",
         .sizes = {1, 2, 1, 90, 30, 64, 64},
         .offset = -20,
         .left = 5,
         .grad_lse = true});
    add({.name = "keys_that_nobody_sees", .sizes = {1, 2, 1, 10, 200, 64, 64}, .causal = true});
    add({.name = "bool_mask", .sizes = {2, 4, 2, 37, 140, 64, 64}, .mask = MaskKind::kBool});
    add({.name = "bool_mask_causal",
         .sizes = {1, 2, 1, 70, 90, 128, 128},
         .causal = true,
         .mask = MaskKind::kBool});
    add({.name = "key_mask", .sizes = {2, 2, 1, 30, 100, 64, 64}, .mask = MaskKind::kBoolPerKey});
    add({.name = "float_mask",
         .sizes = {1, 2, 1, 40, 75, 256, 64},
         .mask = MaskKind::kFloatWithHidden,
         .mask_dtype = dtype});
    add({.name = "strided_d64",
         .sizes = {2, 4, 2, 35, 70, 64, 64},
         .causal = true,
         .strided = true});
    add({.name = "strided_d17", .sizes = {2, 4, 2, 35, 70, 17, 5}, .strided = true});
    add({.name = "strided_mask_d200",
         .sizes = {1, 2, 1, 35, 70, 200, 200},
         .mask = MaskKind::kFloatWithHidden,
         .strided = true});
    add({.name = "strided_mask_d300",
         .sizes = {1, 2, 1, 9, 40, 300, 310},
         .mask = MaskKind::kBool,
         .strided = true,
         .grad_lse = true});
    add({.name = "one_row", .sizes = {3, 8, 2, 1, 200, 64, 64}});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Cases, BackwardTest, testing::ValuesIn(backward_cases()),
                         [](const auto& info) { return info.param.name; });

/// One kernel: a type, D = Dv, and the shared memory of the GPU.
struct KernelOf {
  DType dtype;
  std::int64_t dim;
  int shared_bytes = kSharedBytes;
};

class BackwardContractTest : public testing::TestWithParam<KernelOf> {
 protected:
  static Case with_type(Case c) {
    c.dtype = GetParam().dtype;
    c.sizes.dim_qk = GetParam().dim;
    c.sizes.dim_v = GetParam().dim;
    return c;
  }
  /// Less for large head dims: their tiles are shorter, and take the emulator longer.
  static std::int64_t length(std::int64_t n) { return GetParam().dim > 256 ? n / 2 : n; }
  static bool same_bits(const Call& a, const Call& b) {
    return a.dq.memory == b.dq.memory && a.dk.memory == b.dk.memory && a.dv.memory == b.dv.memory;
  }
  static void run_both(Call& call) { test::run_both(call, GetParam().shared_bytes); }
};

TEST_P(BackwardContractTest, LastRowAndLastKeyAloneInTheirTilesCount) {
  // One more than the largest tile of rows or keys, and so than a multiple of the smaller ones.
  const std::int64_t length = GetParam().dim > 128 ? 65 : 129;
  Call call(with_type({.name = "alone", .sizes = {1, 1, 1, length, length}, .grad_lse = true}));
  run_both(call);
  expect_forward(call, call.expected());
  expect_backward(call, call.expected());
}

TEST_P(BackwardContractTest, NonFiniteKeysAndValuesThatNobodySeesChangeNothing) {
  const std::int64_t rows = length(70);
  const std::int64_t keys = 2 * rows;
  for (const double poison : {std::nan(""), kInf}) {
    for (const bool by_mask : {false, true}) {
      Case c = with_type({.name = "hidden", .sizes = {1, 2, 1, rows, keys}});
      if (by_mask) {
        c.mask = MaskKind::kBoolPerKey;
      } else {
        c.causal = true;
      }
      Call clean(c);
      Call poisoned(c);
      for (std::int64_t j = 0; j < keys; ++j) {
        if (by_mask ? j % 7 != 2 : j < rows) continue;
        for (std::int64_t d = 0; d < 24; d += 5) {
          poisoned.k.set(0, 0, j, d, poison);
          poisoned.v.set(0, 0, j, d, poison);
        }
      }
      run_both(clean);
      run_both(poisoned);
      EXPECT_TRUE(same_bits(clean, poisoned)) << poison << (by_mask ? " mask" : " causal");
      EXPECT_EQ(poisoned.dk.get(0, 0, keys - 5, 5), 0);
      EXPECT_EQ(poisoned.dv.get(0, 0, keys - 5, 5), 0);
    }
  }
}

TEST_P(BackwardContractTest, NonFiniteQueryOrGradientReachesOnlyTheKeysItsRowSees) {
  for (const bool in_grad : {false, true}) {
    const std::int64_t keys = length(100);
    const Case c = with_type({.name = "rows", .sizes = {1, 2, 1, keys, keys}, .causal = true});
    Call clean(c);
    Call poisoned(c);
    const std::int64_t last = GetParam().dim - 1;
    (in_grad ? poisoned.grad : poisoned.q).set(0, 1, 40, 3, std::nan(""));
    (in_grad ? poisoned.grad : poisoned.q).set(0, 1, 40, last, std::nan(""));
    run_both(clean);
    run_both(poisoned);
    for (std::int64_t j = 0; j < keys; ++j) {
      const bool seen = j <= 40;
      EXPECT_EQ(std::isnan(poisoned.dk.get(0, 0, j, 3)), seen) << j;
      EXPECT_EQ(std::isnan(poisoned.dv.get(0, 0, j, 3)), seen) << j;
      EXPECT_EQ(std::isnan(poisoned.dv.get(0, 0, j, last)), seen) << j;
      if (!seen) {
        EXPECT_EQ(poisoned.dk.get(0, 0, j, 3), clean.dk.get(0, 0, j, 3)) << j;
        EXPECT_EQ(poisoned.dv.get(0, 0, j, 3), clean.dv.get(0, 0, j, 3)) << j;
      }
    }
    EXPECT_TRUE(std::isnan(poisoned.dq.get(0, 1, 40, 0)));
    EXPECT_EQ(poisoned.dq.get(0, 1, 41, 0), clean.dq.get(0, 1, 41, 0));
  }
}

TEST_P(BackwardContractTest, LogsumexpThatSwallowsTheSumIsRebuilt) {
  // The mask swallows the scores: as if they were equal, though LSE = -1e30 cannot say so.
  Call even(with_type({.name = "coarse", .sizes = {1, 1, 1, 20, 70}}));
  even.forward.problem.scale = 0;
  const Expected want = even.expected();
  const Bounds bounds = rounding_bounds(even, want);
  // In fp64 it takes more to swallow them.
  const bool is_double = GetParam().dtype == DType::kFloat64;
  Call call(with_type({.name = "coarse",
                       .sizes = {1, 1, 1, 20, 70},
                       .mask = MaskKind::kFloat,
                       .mask_dtype = is_double ? DType::kFloat64 : DType::kFloat32}));
  call.mask->fill([&](auto...) { return is_double ? -1e300 : -1e30; });
  run_both(call);
  for (std::size_t j = 0; j < 70; ++j) {
    EXPECT_NEAR(call.dv.get(0, 0, static_cast<std::int64_t>(j), 9), want.grad_value[j][9],
                bounds.grad_value[j][9])
        << j;
  }
}

TEST_P(BackwardContractTest, LargeLogitsHaveExactGradients) {
  Call call(with_type(
      {.name = "large", .sizes = {1, 2, 1, 40, 90}, .causal = true, .offset = 50, .sigma = 12}));
  run_both(call);
  expect_backward(call, call.expected());
}

TEST_P(BackwardContractTest, LargeEqualScoresHaveExactGradientsOverManyTiles) {
  const std::int64_t keys = length(2048);
  Call call(with_type({.name = "many_tiles", .sizes = {1, 1, 1, 20, keys}}));
  call.q.fill([](auto...) { return 1562.0; });
  call.k.fill([](auto...) { return 1.0; });
  run_both(call);
  expect_backward(call, call.expected());
  // All weights are 1 / Sk, but for their rounding, and that of the result.
  double sum = 0;
  double magnitude = 0;
  for (std::int64_t i = 0; i < 20; ++i) {
    sum += call.grad.get(0, 0, i, 7) / static_cast<double>(keys);
    magnitude += std::fabs(call.grad.get(0, 0, i, 7)) / static_cast<double>(keys);
  }
  for (std::int64_t j = 0; j < keys; j += 100) {
    EXPECT_NEAR(call.dv.get(0, 0, j, 7), sum, magnitude * equal_sum_error(GetParam().dtype, keys))
        << "key " << j;
  }
}

TEST_P(BackwardContractTest, ScoresOfBillionsHaveExactGradients) {
  const std::int64_t keys = length(280);
  Call call(with_type({.name = "billions", .sizes = {1, 1, 1, 20, keys}}));
  fill_with_billions(call);
  run_both(call);
  double sum[2] = {};  // of the rows that weigh the first half of the keys, and the second
  double magnitude[2] = {};
  for (std::int64_t i = 0; i < 20; ++i) {
    const double share = call.grad.get(0, 0, i, 7) * 2 / static_cast<double>(keys);
    sum[i % 2] += share;
    magnitude[i % 2] += std::fabs(share);
    EXPECT_TRUE(std::isfinite(call.dq.get(0, 0, i, 7))) << i;
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    const int half = j < keys / 2 ? 0 : 1;
    EXPECT_NEAR(call.dv.get(0, 0, j, 7), sum[half],
                magnitude[half] * equal_sum_error(GetParam().dtype, static_cast<double>(keys)))
        << j;
    EXPECT_TRUE(std::isfinite(call.dk.get(0, 0, j, 7))) << j;
  }
}

TEST_P(BackwardContractTest, GradientsThatNobodyWantsAreNotComputed) {
  const Case c = with_type({.name = "wanted", .sizes = {1, 2, 1, 30, 70}});
  Call all(c);
  run_both(all);
  for (int only = 0; only < 3; ++only) {
    Call call(c);
    if (only != 0) call.backward.grad_query.data = nullptr;
    if (only != 1) call.backward.grad_key.data = nullptr;
    if (only != 2) call.backward.grad_value.data = nullptr;
    const Call untouched(c);
    run_both(call);
    EXPECT_EQ(call.dq.memory, only == 0 ? all.dq.memory : untouched.dq.memory);
    EXPECT_EQ(call.dk.memory, only == 1 ? all.dk.memory : untouched.dk.memory);
    EXPECT_EQ(call.dv.memory, only == 2 ? all.dv.memory : untouched.dv.memory);
  }
}

TEST_P(BackwardContractTest, ResultDoesNotDependOnTheOrderOfThreads) {
  const Case c = with_type({.name = "order", .sizes = {1, 4, 2, 50, 70}, .causal = true});
  Call first(c);
  Call second(c);
  run_both(first);
  run_forward(second, 0, 1, GetParam().shared_bytes);
  const emulator::Report report = run_backward(second, 99, GetParam().shared_bytes);
  EXPECT_TRUE(report.clean()) << report.text();
  EXPECT_TRUE(same_bits(first, second));
}

INSTANTIATE_TEST_SUITE_P(
    Kernels, BackwardContractTest,
    testing::Values(KernelOf{DType::kBFloat16, 64}, KernelOf{DType::kBFloat16, 128},
                    KernelOf{DType::kBFloat16, 320}, KernelOf{DType::kFloat16, 64},
                    KernelOf{DType::kFloat16, 256}, KernelOf{DType::kFloat32, 64},
                    KernelOf{DType::kFloat32, 264}, KernelOf{DType::kFloat64, 64},
                    KernelOf{DType::kBFloat16, 320, cuda::kLeastSharedBytes},
                    KernelOf{DType::kFloat16, 200, cuda::kLeastSharedBytes}),
    [](const auto& info) {
      std::string name = name_of(info.param.dtype).append("_d");
      name.append(std::to_string(info.param.dim));
      return info.param.shared_bytes == kSharedBytes ? name : name.append("_little_shared");
    });

}  // namespace
}  // namespace fused_attention::test
