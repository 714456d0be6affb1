// What the kernels promise beyond the formula: hidden NaN, extreme scores, thread counts, rounding.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "call.h"
#include "cpu/isa.h"
#include "threads.h"

namespace fused_attention::test {
namespace {

class ContractTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { cpu::set_isa(GetParam()); }
  void TearDown() override { at::set_num_threads(2); }
};

/// What products are made of differs: numbers, or on one ISA pairs of bf16.
constexpr DType kOperandTypes[] = {DType::kFloat32, DType::kBFloat16};

bool same_bits(const Call& a, const Call& b) {
  return a.out.memory == b.out.memory && a.lse == b.lse && a.dq.memory == b.dq.memory &&
         a.dk.memory == b.dk.memory && a.dv.memory == b.dv.memory;
}

TEST_P(ContractTest, ResultsAreBitwiseEqualForEveryThreadCount) {
  const Case cases[] = {
      {.name = "rows", .sizes = {1, 1, 1, 200, 200, 64, 64}},
      {.name = "rows_causal", .sizes = {1, 6, 2, 700, 700, 32, 16}, .causal = true},
      {.name = "keys", .sizes = {1, 2, 1, 1, 3000, 16, 16}},
      {.name = "rows_and_keys",
       .sizes = {1, 1, 1, 70, 1700, 16, 24},
       .causal = true,
       .offset = 1630},
      {.name = "heads", .sizes = {4, 8, 4, 65, 65, 16, 16}, .causal = true},
      {.name = "window", .sizes = {1, 2, 1, 900, 900, 16, 16}, .left = 200, .right = 0},
      {.name = "mask", .sizes = {1, 2, 1, 500, 300, 16, 16}, .mask = MaskKind::kBool},
  };
  for (const DType dtype : kOperandTypes) {
    for (Case c : cases) {
      c.dtype = dtype;
      at::set_num_threads(1);
      Call one(c);
      one.run();
      for (const int threads : {2, 3, 4, 16}) {
        at::set_num_threads(threads);
        Call many(c);
        many.run();
        EXPECT_TRUE(same_bits(one, many)) << c.name << " with " << threads << " threads";
      }
    }
  }
}

void expect_hidden_poison_changes_nothing(Case c, double poison, bool by_mask) {
  if (by_mask) {
    c.mask = MaskKind::kBoolPerKey;
  } else {
    c.causal = true;  // the last row sees keys up to 70, which is the first of a pair
    c.offset = 71 - c.sizes.seq_q;
  }
  Call clean(c);
  Call poisoned(c);
  const auto hidden = [&](std::int64_t j) { return by_mask ? j % 7 == 2 : j >= 71; };
  for (std::int64_t j = 0; j < 200; ++j) {
    if (!hidden(j)) continue;
    for (std::int64_t d = 0; d < 24; d += 5) {
      poisoned.k.set(0, 1, j, d, poison);
      poisoned.v.set(0, 0, j, d, poison);
    }
  }
  clean.run();
  poisoned.run();
  EXPECT_TRUE(same_bits(clean, poisoned)) << poison << (by_mask ? " mask" : " causal");
  for (std::int64_t j = 0; j < 200; ++j) {
    if (!hidden(j)) continue;
    EXPECT_EQ(poisoned.dk.get(0, 1, j, 5), 0);
    EXPECT_EQ(poisoned.dv.get(0, 0, j, 5), 0);
  }
}

bool has_negative_zero(const Tensor& x) {
  for (std::int64_t s = 0; s < x.shape[2]; ++s)
    for (std::int64_t d = 0; d < x.shape[3]; ++d) {
      const double value = x.get(0, 0, s, d);
      if (value == 0 && std::signbit(value)) return true;
    }
  return false;
}

// Products that vanish leave -0, products with hidden weights add +0, and how many of those meet
// depends on how the rows are cut.
TEST_P(ContractTest, SignsOfZerosAreEqualForEveryThreadCount) {
  for (const std::int64_t rows : {56, 104, 152, 258}) {
    const Case c{
        .name = "vanishing", .sizes = {1, 1, 1, rows, 258, 16, 16}, .causal = true, .offset = 100};
    const auto run = [&](int threads, double sign) {
      at::set_num_threads(threads);
      Call call(c);
      const auto vanish = [&](Tensor& x) {
        x.fill([&](auto, auto, auto i, auto) { return i + 1 == x.shape[2] ? sign * 1e-45 : 0; });
      };
      vanish(call.grad);
      vanish(call.v);
      call.run();
      return call;
    };
    for (const double sign : {1.0, -1.0}) {
      const Call one = run(1, sign);
      EXPECT_FALSE(has_negative_zero(one.dk)) << rows << " rows";
      EXPECT_FALSE(has_negative_zero(one.dv)) << rows << " rows";
      for (const int threads : {2, 3, 8}) {
        EXPECT_TRUE(same_bits(one, run(threads, sign)))
            << rows << " rows, " << threads << " threads";
      }
    }
  }
}

TEST_P(ContractTest, NonFiniteKeysAndValuesThatNobodySeesChangeNothing) {
  for (const double poison : {std::nan(""), kInf, -kInf}) {
    for (const bool by_mask : {false, true}) {
      for (const DType dtype : kOperandTypes) {  // rows of one position, which see the same keys
        expect_hidden_poison_changes_nothing(
            {.name = "one_position", .dtype = dtype, .sizes = {1, 20, 2, 1, 200, 24, 24}}, poison,
            by_mask);
      }
      // Many rows have K and V packed, some have them by rows, few have dims in the lanes; of the
      // head dims one is whole vectors, and read where it is.
      for (const std::int64_t seq_q : {70, 10, 1}) {
        for (const std::int64_t dim : {24, 32}) {
          for (const DType dtype : kOperandTypes) {
            SCOPED_TRACE(seq_q);
            expect_hidden_poison_changes_nothing(
                {.name = "hidden", .dtype = dtype, .sizes = {1, 4, 2, seq_q, 200, dim, dim}},
                poison, by_mask);
          }
        }
      }
    }
  }
}

/// Many rows, some, and few: the forms in which a tile is read.
constexpr std::int64_t kQueryLengths[] = {100, 10, 2};

/// Causal, so that the second half of the rows, and no other, sees key 60.
Case half_sees_key_60(std::int64_t seq_q, DType dtype) {
  return {.name = "seen",
          .dtype = dtype,
          .sizes = {1, 2, 1, seq_q, 100, 16, 16},
          .causal = true,
          .offset = 60 - seq_q / 2};
}

void expect_poison_reaches_only_rows_that_see_it(std::int64_t seq_q, DType dtype, double poison,
                                                 bool in_value) {
  const Case c = half_sees_key_60(seq_q, dtype);
  const double rounding = dtype == DType::kFloat32 ? 1e-6 : 1.0 / 256;
  Call clean(c);
  Call poisoned(c);
  (in_value ? poisoned.v : poisoned.k).set(0, 0, 60, 3, poison);
  clean.run();
  poisoned.run();
  for (std::int64_t i = 0; i < seq_q; ++i) {
    const double got = poisoned.out.get(0, 1, i, 3);
    if (i < seq_q / 2) {
      EXPECT_EQ(got, clean.out.get(0, 1, i, 3)) << "row " << i;
      EXPECT_EQ(poisoned.dq.get(0, 1, i, 3), clean.dq.get(0, 1, i, 3)) << "row " << i;
    } else if (in_value) {
      EXPECT_FALSE(std::isfinite(got)) << "row " << i;
      EXPECT_NEAR(poisoned.out.get(0, 1, i, 4), clean.out.get(0, 1, i, 4), rounding) << "row " << i;
    } else if (std::isnan(poison)) {
      EXPECT_TRUE(std::isnan(got)) << "row " << i;
    }
  }
}

TEST_P(ContractTest, NonFiniteKeyOrValueReachesOnlyTheRowsThatSeeIt) {
  for (const std::int64_t seq_q : kQueryLengths) {
    for (const double poison : {std::nan(""), kInf}) {
      for (const bool in_value : {false, true}) {
        for (const DType dtype : kOperandTypes) {
          SCOPED_TRACE(seq_q);
          expect_poison_reaches_only_rows_that_see_it(seq_q, dtype, poison, in_value);
        }
      }
    }
  }
}

void expect_poison_reaches_only_keys_that_are_seen(std::int64_t seq_q, DType dtype, bool in_grad) {
  const Case c = half_sees_key_60(seq_q, dtype);
  const double rounding = dtype == DType::kFloat32 ? 1e-6 : 1.0 / 256;
  Call clean(c);
  Call poisoned(c);
  (in_grad ? poisoned.grad : poisoned.q).set(0, 1, seq_q / 2, 3, std::nan(""));
  clean.run();
  poisoned.run();
  for (std::int64_t j = 0; j < 100; ++j) {
    const bool seen = j <= 60;
    const double dk = poisoned.dk.get(0, 0, j, 3);
    const double dv = poisoned.dv.get(0, 0, j, 3);
    if (seen) {
      EXPECT_TRUE(std::isnan(dk)) << j;
      EXPECT_TRUE(std::isnan(dv)) << j;
      const double other = poisoned.dv.get(0, 0, j, 4);
      if (in_grad) EXPECT_NEAR(other, clean.dv.get(0, 0, j, 4), rounding) << j;
    } else {
      EXPECT_EQ(dk, clean.dk.get(0, 0, j, 3)) << j;
      EXPECT_EQ(dv, clean.dv.get(0, 0, j, 3)) << j;
    }
  }
}

TEST_P(ContractTest, NonFiniteQueryOrGradientReachesOnlyTheKeysItsRowSees) {
  for (const std::int64_t seq_q : kQueryLengths) {
    for (const bool in_grad : {false, true}) {
      for (const DType dtype : kOperandTypes) {
        SCOPED_TRACE(seq_q);
        expect_poison_reaches_only_keys_that_are_seen(seq_q, dtype, in_grad);
      }
    }
  }
}

TEST_P(ContractTest, AverageOfOnesIsOne) {
  // Weights that are rounded for the product have errors of both signs, which cancel.
  for (const DType dtype : kOperandTypes) {
    Call call({.name = "ones", .dtype = dtype, .sizes = {1, 1, 1, 40, 1000, 64, 8}});
    call.v.fill([](auto...) { return 1.0; });
    cpu::forward(call.forward);
    for (std::int64_t i = 0; i < 40; ++i) EXPECT_NEAR(call.out.get(0, 0, i, 3), 1, 1e-6) << i;
  }
}

TEST_P(ContractTest, LargeDotsWithATinyScaleHaveTheRightScores) {
  // The sum of q k overflows fp32, the score is 1 or 0.
  for (const DType dtype : kOperandTypes) {
    Call call({.name = "tiny_scale", .dtype = dtype, .sizes = {1, 1, 1, 40, 2, 64, 8}});
    call.forward.problem.scale = call.backward.problem.scale = 0x1p-130;
    call.q.fill([](auto...) { return 0x1p+62; });
    call.k.fill([](auto, auto, auto j, auto) { return j == 0 ? 0x1p+62 : 0; });
    call.v.fill([](auto, auto, auto j, auto) { return j == 0 ? 1.0 : 0.0; });
    cpu::forward(call.forward);
    EXPECT_NEAR(call.out.get(0, 0, 39, 3), 1 / (1 + std::exp(-1.0)), 1.0 / 256);
    EXPECT_NEAR(call.lse_at(39), std::log(1 + std::exp(1.0)), 1e-5);
  }
}

TEST_P(ContractTest, VisibleKeyWithAScoreOfMinusInfinityHasNoGradientOfItsValue) {
  // Lanes without a row have 0 * Inf = NaN where every row has -Inf: 41 rows leave some.
  for (const DType dtype : kOperandTypes) {
    Call call({.name = "minus_inf", .dtype = dtype, .sizes = {1, 1, 1, 41, 100, 16, 16}});
    call.q.fill([](auto...) { return -1.0; });
    for (std::int64_t d = 0; d < 16; ++d) call.k.set(0, 0, 60, d, kInf);
    call.run();
    for (std::int64_t j = 0; j < 100; ++j) {
      EXPECT_TRUE(std::isfinite(call.dv.get(0, 0, j, 3))) << j;
    }
    EXPECT_EQ(call.dv.get(0, 0, 60, 3), 0);
  }
}

TEST_P(ContractTest, GradientOfRowsThatSeeNothingCountsForNothing) {
  for (const DType dtype : kOperandTypes) {
    const Case c{.name = "empty",
                 .dtype = dtype,
                 .sizes = {1, 2, 1, 40, 40, 8, 8},
                 .causal = true,
                 .offset = -10};
    Call clean(c);
    Call poisoned(c);
    for (std::int64_t i = 0; i < 10; ++i) {
      poisoned.grad.set(0, 0, i, 2, std::nan(""));
      poisoned.q.set(0, 1, i, 2, kInf);
    }
    clean.run();
    poisoned.run();
    EXPECT_TRUE(same_bits(clean, poisoned));
    EXPECT_EQ(poisoned.out.get(0, 0, 3, 0), 0);
    EXPECT_EQ(poisoned.lse_at(3), -kInf);
    EXPECT_EQ(poisoned.dq.get(0, 1, 3, 2), 0);
  }
}

TEST_P(ContractTest, HugeScoresHaveTheRightGradients) {
  // LSE of a mask of -1e30 or of the lowest float swallows log n: P = exp(S - LSE) would be 1 each.
  // LSE near 6e4 still moves P by a part in a thousand.
  for (const double bias : {-1e30, -3.4028234663852886e38, 1e6, 6e4}) {
    const Case c{.name = "huge", .sizes = {1, 2, 1, 30, 150, 16, 16}, .mask = MaskKind::kFloat};
    Call call(c);
    call.mask->fill([&](auto...) { return bias; });
    call.q.fill([](auto...) { return 0.0; });
    call.run();
    const Expected expected = call.expected();
    for (std::int64_t j = 0; j < 150; ++j) {
      const double want = expected.grad_value[static_cast<std::size_t>(j)][4];
      EXPECT_NEAR(call.dv.get(0, 0, j, 4), want, 1e-5) << bias;
    }
    for (std::int64_t i = 0; i < 30; ++i) {
      EXPECT_NEAR(call.dq.get(0, 0, i, 4), expected.grad_query[static_cast<std::size_t>(i)][4],
                  1e-5);
    }
  }
}

TEST_P(ContractTest, FiniteScoresAndMasksWhoseSumOverflowsHideNothing) {
  // -3e38 and -3e38 make -Inf in fp32, which would mean hidden. All keys are alike: equal weights.
  const Case c{.name = "overflow", .sizes = {1, 2, 1, 30, 150, 4, 16}, .mask = MaskKind::kFloat};
  Call call(c);
  call.mask->fill([](auto...) { return -3e38; });
  call.q.fill([](auto...) { return 1e19; });
  call.k.fill([](auto...) { return -1.5e19; });
  call.run();
  double mean = 0;
  for (std::int64_t j = 0; j < 150; ++j) mean += call.v.get(0, 0, j, 5) / 150;
  double grad = 0;
  for (std::int64_t i = 0; i < 30; ++i) {
    EXPECT_NEAR(call.out.get(0, 1, i, 5), mean, 1e-5);
    EXPECT_TRUE(std::isfinite(call.lse_at(static_cast<std::size_t>(i))));
    for (const std::int64_t h : {0, 1}) grad += call.grad.get(0, h, i, 5) / 150;
  }
  EXPECT_NEAR(call.dv.get(0, 0, 140, 5), grad, 1e-5);
}

TEST_P(ContractTest, LargestMaskValueMakesNoRowNaN) {
  // 3e38 and 3e38 make +Inf in fp32, and Inf - Inf NaN. One key has it, and so all of the weight.
  const Case c{.name = "largest", .sizes = {1, 2, 1, 30, 150, 4, 16}, .mask = MaskKind::kFloat};
  Call call(c);
  call.mask->fill([](auto, auto, auto, auto j) { return j == 70 ? 3e38 : 0; });
  call.q.fill([](auto...) { return 1e19; });
  call.k.fill([](auto, auto, auto j, auto) { return j == 70 ? 1.5e19 : 0; });
  call.run();
  for (std::int64_t i = 0; i < 30; ++i) {
    EXPECT_EQ(call.out.get(0, 1, i, 5), call.v.get(0, 0, 70, 5));
    EXPECT_TRUE(std::isfinite(call.lse_at(static_cast<std::size_t>(i))));
    EXPECT_TRUE(std::isfinite(call.dq.get(0, 1, i, 2)));
  }
  for (const Tensor* grad : {&call.dk, &call.dv}) {
    for (const std::int64_t j : {0, 69, 71, 149}) EXPECT_EQ(grad->get(0, 0, j, 3), 0);
  }
}

TEST_P(ContractTest, MaskThatTakesTheLargestScoreToInfinityIsBounded) {
  // The largest float and half a unit in its last place, 2^103, make Inf; with less they do not.
  const double largest = 0x1.fffffep127;
  for (const double magnitude : {0x1.fffffep102, 0x1p103, 0x1p104, 3e38}) {
    for (const double sign : {1.0, -1.0}) {
      for (const bool hides : {false, true}) {
        const Case c{.name = "bound", .sizes = {1, 1, 1, 30, 150, 4, 16}, .mask = MaskKind::kFloat};
        Call call(c);
        const auto hidden = [&](std::int64_t i, std::int64_t j) {
          return hides && (i + j) % 5 < 2;
        };
        call.mask->fill([&](auto, auto, auto i, auto j) {
          return hidden(i, j) ? -std::numeric_limits<double>::infinity() : sign * magnitude;
        });
        // The scale is a half.
        call.q.fill([&](auto, auto, auto, auto d) { return d == 0 ? sign * 0x1p65 : 0; });
        call.k.fill([&](auto, auto, auto, auto d) { return d == 0 ? largest * 0x1p-64 : 0; });
        call.run();
        for (std::int64_t i = 0; i < 30; ++i) {
          double sum = 0;
          int count = 0;
          for (std::int64_t j = 0; j < 150; ++j) {
            if (hidden(i, j)) continue;
            sum += call.v.get(0, 0, j, 5);
            ++count;
          }
          ASSERT_NEAR(call.out.get(0, 0, i, 5), sum / count, 1e-5) << magnitude * sign << hides;
        }
      }
    }
  }
}

TEST_P(ContractTest, HalfPrecisionOutputIsTheNearestOfItsValue) {
  // One key: the output is the value itself, every finite half must come back unchanged.
  Case c{.name = "half", .dtype = DType::kFloat16, .sizes = {1, 1, 1, 1, 1, 4, 63488}};
  Call call(c);
  std::int64_t n = 0;
  std::vector<std::uint16_t> bits;
  for (int x = 0; x < 65536; ++x) {
    if (((x >> 10) & 31) == 31) continue;
    bits.push_back(static_cast<std::uint16_t>(x));
    call.v.set(0, 0, 0, n++, half_value(static_cast<std::uint16_t>(x)));
  }
  ASSERT_EQ(n, 63488);
  cpu::forward(call.forward);
  for (std::int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(call.out.get(0, 0, 0, i), half_value(bits[static_cast<std::size_t>(i)])) << i;
  }
}

TEST_P(ContractTest, MeanOfTwoValuesRoundsToNearestEven) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Case c{.name = "round", .dtype = dtype, .sizes = {1, 1, 1, 1, 2, 4, 40}};
    Call call(c);
    call.q.fill([](auto...) { return 0.0; });
    // Neighbours 1 + n u and 1 + (n + 1) u: the mean is a tie, which goes to the even one.
    const double u = dtype == DType::kFloat16 ? 1.0 / 1024 : 1.0 / 128;
    call.v.fill([&](auto, auto, auto j, auto d) { return 1 + static_cast<double>(d + j) * u; });
    cpu::forward(call.forward);
    for (std::int64_t d = 0; d < 40; ++d) {
      const auto even = static_cast<double>(d % 2 == 0 ? d : d + 1);
      EXPECT_EQ(call.out.get(0, 0, 0, d), 1 + even * u) << d;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, ContractTest, testing::ValuesIn(cpu::supported_isas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fused_attention::test
