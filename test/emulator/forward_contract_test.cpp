// What the forward kernels promise beyond the formula: hidden NaN, extreme scores, any scale.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "emulator/kernel_call.h"
#include "emulator/rounding_bounds.h"

namespace fused_attention::test {
namespace {

void expect_clean(const emulator::Report& report) { EXPECT_TRUE(report.clean()) << report.text(); }

bool same_bits(const Call& a, const Call& b) {
  return a.out.memory == b.out.memory && a.lse == b.lse;
}

class ForwardContractTest : public testing::TestWithParam<DType> {
 protected:
  Case with_type(Case c) const {
    c.dtype = GetParam();
    return c;
  }
};

TEST_P(ForwardContractTest, NonFiniteKeysAndValuesThatNobodySeesChangeNothing) {
  for (const double poison : {std::nan(""), kInf, -kInf}) {
    for (const bool by_mask : {false, true}) {
      Case c = with_type({.name = "hidden", .sizes = {1, 4, 2, 70, 200, 24, 24}});
      if (by_mask) {
        c.mask = MaskKind::kBoolPerKey;
      } else {
        c.causal = true;  // row 69 sees keys up to 69
      }
      Call clean(c);
      Call poisoned(c);
      for (std::int64_t j = 0; j < 200; ++j) {
        if (by_mask ? j % 7 != 2 : j < 70) continue;
        for (std::int64_t d = 0; d < 24; d += 5) {
          poisoned.k.set(0, 1, j, d, poison);
          poisoned.v.set(0, 0, j, d, poison);
        }
      }
      expect_clean(run_forward(clean));
      expect_clean(run_forward(poisoned));
      EXPECT_TRUE(same_bits(clean, poisoned)) << poison << (by_mask ? " mask" : " causal");
    }
  }
}

TEST_P(ForwardContractTest, NonFiniteValueReachesOnlyTheRowsThatSeeIt) {
  const bool is_half = element_size(GetParam()) == 2;
  for (const std::int64_t dim : {64, 128, 256}) {
    if (dim > 64 && !is_half) continue;  // all of them are one body
    for (const double poison : {std::nan(""), kInf}) {
      for (const MaskKind mask : {MaskKind::kNone, MaskKind::kBool}) {
        Case c = with_type(
            {.name = "seen", .sizes = {1, 2, 1, 100, 100, dim, dim}, .causal = true, .mask = mask});
        Call clean(c);
        Call poisoned(c);
        poisoned.v.set(0, 0, 60, 3, poison);
        expect_clean(run_forward(clean));
        expect_clean(run_forward(poisoned));
        for (std::int64_t i = 0; i < 100; ++i) {
          const bool sees =
              i >= 60 && (mask == MaskKind::kNone || mask_value(&*poisoned.mask, 0, 1, i, 60) == 0);
          const double got = poisoned.out.get(0, 1, i, 3);
          EXPECT_EQ(std::isfinite(got), !sees) << "row " << i << " of D " << dim;
          if (!sees) {
            EXPECT_EQ(got, clean.out.get(0, 1, i, 3)) << "row " << i;
          }
          EXPECT_EQ(poisoned.out.get(0, 1, i, 4), clean.out.get(0, 1, i, 4)) << "row " << i;
        }
      }
    }
  }
}

TEST_P(ForwardContractTest, NanAmongVisibleScoresMakesTheRowNan) {
  const Case c = with_type({.name = "nan", .sizes = {1, 2, 1, 80, 80, 64, 64}, .causal = true});
  Call clean(c);
  Call poisoned(c);
  poisoned.k.set(0, 0, 50, 7, std::nan(""));
  poisoned.q.set(0, 1, 20, 7, std::nan(""));
  expect_clean(run_forward(clean));
  expect_clean(run_forward(poisoned));
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t i = 0; i < 80; ++i) {
      const auto row = static_cast<std::size_t>(h * 80 + i);
      const bool is_nan = i >= 50 || (h == 1 && i == 20);
      EXPECT_EQ(std::isnan(poisoned.out.get(0, h, i, 0)), is_nan) << h << ' ' << i;
      EXPECT_EQ(std::isnan(poisoned.lse_at(row)), is_nan) << h << ' ' << i;
    }
  }
}

TEST_P(ForwardContractTest, AnyFiniteScaleIsLegal) {
  for (const double scale : {0.0, -0.125, -3.0, 1e-30, 1e-42, 2.5}) {
    Call call(with_type({.name = "scale", .sizes = {1, 2, 1, 50, 90, 64, 64}, .causal = true}));
    call.forward.problem.scale = scale;
    expect_clean(run_forward(call));
    SCOPED_TRACE(scale);
    expect_forward(call, call.expected());
  }
}

TEST_P(ForwardContractTest, MasksOfHugeFiniteValuesHideNothing) {
  for (const double lowest : {-1e30, -0x1.fffffep127, -0x1.fffffffffffffp1023}) {
    for (const bool whole_row : {true, false}) {
      // What the mask swallows is as if the scores were equal.
      Call even(with_type({.name = "lowest", .sizes = {1, 1, 1, 20, 70, 64, 64}}));
      even.forward.problem.scale = 0;
      const Expected want = even.expected();
      const Bounds bounds = rounding_bounds(even, want);
      Call call(with_type({.name = "lowest",
                           .sizes = {1, 1, 1, 20, 70, 64, 64},
                           .mask = MaskKind::kFloat,
                           .mask_dtype = lowest < -1e300 ? DType::kFloat64 : DType::kFloat32}));
      call.mask->fill([&](auto, auto, auto, auto j) { return whole_row || j < 30 ? lowest : 1; });
      expect_clean(run_forward(call));
      for (std::int64_t i = 0; i < 20; ++i) {
        const auto row = static_cast<std::size_t>(i);
        const double got = call.out.get(0, 0, i, 9);
        if (whole_row) {
          EXPECT_NEAR(got, want.output[row][9], bounds.output[row][9]) << lowest;
          EXPECT_LT(call.lse_at(row), lowest > -1e31 ? -0.9e30 : -3.4e38);
        } else {
          EXPECT_TRUE(std::isfinite(got));
        }
      }
    }
  }
}

TEST_P(ForwardContractTest, LargeScoresAreExact) {
  Case c = with_type({.name = "large",
                      .sizes = {1, 1, 1, 40, 90, 64, 64},
                      .causal = true,
                      .offset = 50,
                      .sigma = 30});
  Call call(c);
  expect_clean(run_forward(call));
  expect_forward(call, call.expected());
}

TEST_P(ForwardContractTest, LargeEqualScoresStayExactOverManyTiles) {
  Call call(with_type({.name = "many_tiles", .sizes = {1, 1, 1, 20, 2048, 64, 64}}));
  call.q.fill([](auto...) { return 1562.0; });
  call.k.fill([](auto...) { return 1.0; });
  call.v.fill([](auto, auto, auto j, auto) { return j < 1024 ? 1.0 : 0.0; });
  expect_clean(run_forward(call));
  expect_forward(call, call.expected());
  // All weights are the same number, whatever it is: only its rounding for the product, and that of
  // the output, part the two halves.
  for (std::int64_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(call.out.get(0, 0, i, 7), 0.5, 0.5 * equal_sum_error(GetParam(), 2048))
        << "row " << i;
  }
}

TEST_P(ForwardContractTest, ScoresOfBillionsAreExact) {
  constexpr std::int64_t kKeys = 280;
  Call call(with_type({.name = "billions", .sizes = {1, 1, 1, 20, kKeys, 64, 64}}));
  fill_with_billions(call);
  expect_clean(run_forward(call));
  const double large = billions(GetParam());
  for (std::int64_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(call.out.get(0, 0, i, 7), 0.5, 0.5 * equal_sum_error(GetParam(), kKeys)) << i;
    const double score = large * large * (i % 2 == 0 ? 8 : -4);
    EXPECT_NEAR(call.lse_at(static_cast<std::size_t>(i)), score, std::fabs(score) * 0x1p-21) << i;
  }
}

TEST_P(ForwardContractTest, ScoresThatGrowFromTileToTileAreExact) {
  // Past 1024 / log2(e) the exponents of plain kernels change their form.
  Call call(with_type({.name = "growing", .sizes = {1, 1, 1, 20, 280, 64, 64}}));
  call.q.fill([](auto, auto, auto i, auto) { return i % 2 == 0 ? 1.0 : -1.0; });
  call.k.fill([](auto, auto, auto j, auto) { return 84 + static_cast<double>(j) / 32; });
  expect_clean(run_forward(call));
  expect_forward(call, call.expected());
}

TEST_P(ForwardContractTest, ResultDoesNotDependOnTheOrderOfThreads) {
  const Case c =
      with_type({.name = "order", .sizes = {1, 2, 1, 100, 100, 128, 128}, .causal = true});
  Call first(c);
  Call second(c);
  expect_clean(run_forward(first));
  expect_clean(run_forward(second, 1234));
  EXPECT_TRUE(same_bits(first, second));
}

INSTANTIATE_TEST_SUITE_P(Types, ForwardContractTest,
                         testing::Values(DType::kBFloat16, DType::kFloat16, DType::kFloat32,
                                         DType::kFloat64),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace fused_attention::test
