// The CPU kernels of every ISA of this machine against the formula in double.
#include <gtest/gtest.h>

#include <string>

#include "call.h"
#include "cpu/isa.h"

namespace fused_attention::test {
namespace {

/// Largest error over the largest magnitude of the tensor, in units of `epsilon`.
void expect_near(const char* what, const Tensor& actual, const std::vector<Row>& expected,
                 double tolerance) {
  double largest = 1;
  double error = 0;
  for (std::int64_t b = 0; b < actual.shape[0]; ++b)
    for (std::int64_t h = 0; h < actual.shape[1]; ++h)
      for (std::int64_t s = 0; s < actual.shape[2]; ++s)
        for (std::int64_t d = 0; d < actual.shape[3]; ++d) {
          const auto row =
              static_cast<std::size_t>((b * actual.shape[1] + h) * actual.shape[2] + s);
          const double want = expected[row][static_cast<std::size_t>(d)];
          const double got = actual.get(b, h, s, d);
          ASSERT_FALSE(std::isnan(got)) << what << " at " << b << ' ' << h << ' ' << s << ' ' << d;
          largest = std::fmax(largest, std::fabs(want));
          error = std::fmax(error, std::fabs(want - got));
        }
  EXPECT_LE(error, tolerance * largest) << what;
}

/// Rounding of the storage type plus the accumulated error of the computing type.
double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 1e-13;
    case DType::kFloat32:
      return 3e-6;
    case DType::kFloat16:
      return 1.0 / 2048;
    default:
      return 1.0 / 256;
  }
}

std::vector<Case> cases() {
  const auto sizes = [](std::int64_t b, std::int64_t hq, std::int64_t hkv, std::int64_t sq,
                        std::int64_t sk, std::int64_t d,
                        std::int64_t dv) { return core::Sizes{b, hq, hkv, sq, sk, d, dv}; };
  std::vector<Case> list = {
      {.name = "mha", .sizes = sizes(2, 2, 2, 33, 33, 16, 16)},
      {.name = "gqa_causal", .sizes = sizes(1, 6, 2, 129, 129, 64, 64), .causal = true},
      {.name = "mqa_odd_dims",
       .sizes = sizes(2, 4, 1, 31, 140, 7, 5),
       .causal = true,
       .offset = 40},
      {.name = "gqa_many_tiles", .sizes = sizes(1, 3, 1, 300, 517, 40, 24), .causal = true},
      {.name = "causal_wide_rows", .sizes = sizes(1, 2, 2, 333, 333, 80, 96), .causal = true},
      {.name = "more_queries_than_keys",
       .sizes = sizes(1, 2, 2, 50, 20, 8, 8),
       .causal = true,
       .offset = -30},
      {.name = "window", .sizes = sizes(1, 2, 1, 200, 200, 16, 16), .left = 17, .right = 3},
      {.name = "window_causal",
       .sizes = sizes(1, 2, 1, 300, 300, 16, 16),
       .causal = true,
       .left = 130},
      {.name = "decode", .sizes = sizes(1, 8, 2, 1, 300, 64, 64)},
      {.name = "decode_split", .sizes = sizes(1, 8, 1, 1, 2100, 32, 32)},
      {.name = "few_rows_split_causal",
       .sizes = sizes(1, 4, 1, 7, 1100, 24, 40),
       .causal = true,
       .offset = 1093},
      {.name = "one_by_one", .sizes = sizes(1, 1, 1, 1, 1, 1, 1)},
      {.name = "bool_mask", .sizes = sizes(2, 4, 2, 37, 150, 16, 16), .mask = MaskKind::kBool},
      {.name = "bool_mask_causal",
       .sizes = sizes(2, 4, 2, 60, 150, 16, 16),
       .causal = true,
       .offset = 20,
       .mask = MaskKind::kBool},
      {.name = "bool_mask_transposed",
       .sizes = sizes(2, 4, 2, 37, 150, 16, 16),
       .mask = MaskKind::kBoolBytes},
      {.name = "bool_mask_blocks",
       .sizes = sizes(1, 3, 1, 130, 300, 16, 16),
       .mask = MaskKind::kBoolBlocks},
      {.name = "bool_mask_blocks_window",
       .sizes = sizes(1, 2, 2, 130, 300, 16, 16),
       .left = 40,
       .right = 100,
       .mask = MaskKind::kBoolBlocks},
      {.name = "padding_mask",
       .sizes = sizes(2, 4, 2, 37, 150, 16, 16),
       .mask = MaskKind::kBoolPerKey},
      {.name = "float_mask", .sizes = sizes(2, 4, 2, 37, 150, 16, 16), .mask = MaskKind::kFloat},
      {.name = "half_mask_with_hidden",
       .sizes = sizes(2, 4, 2, 37, 150, 16, 16),
       .mask = MaskKind::kFloatWithHidden,
       .mask_dtype = DType::kFloat16},
      {.name = "double_mask_with_hidden",
       .sizes = sizes(1, 4, 2, 37, 150, 16, 16),
       .mask = MaskKind::kFloatWithHidden,
       .mask_dtype = DType::kFloat64},
      {.name = "strided", .sizes = sizes(2, 4, 2, 45, 67, 19, 11), .causal = true, .strided = true},
      {.name = "lse_gradient", .sizes = sizes(2, 4, 2, 45, 67, 16, 16), .grad_lse = true},
      {.name = "latent_dims",
       .sizes = sizes(1, 4, 1, 20, 70, 192, 128),
       .causal = true,
       .offset = 50},
      {.name = "few_rows_in_place", .sizes = sizes(2, 3, 1, 1, 259, 64, 32)},
      {.name = "rows_in_place", .sizes = sizes(2, 2, 1, 10, 256, 80, 48), .causal = true},
      {.name = "rows_that_alias", .sizes = sizes(1, 2, 1, 10, 300, 128, 256)},
      {.name = "no_keys", .sizes = sizes(1, 2, 1, 5, 0, 8, 8)},
      {.name = "no_queries", .sizes = sizes(1, 2, 1, 0, 5, 8, 8)},
  };
  // Every way in which rows fall into whole vectors, panels and their tails.
  for (std::int64_t rows = 1; rows <= 100; rows += rows % 8 == 1 ? 6 : 1) {
    list.push_back({.name = "rows_" + std::to_string(rows),
                    .sizes = sizes(1, 1, 1, rows, 37, 11, 6),
                    .causal = rows % 2 == 0});
  }
  std::vector<Case> all;
  for (const auto& [dtype, suffix] : {std::pair{DType::kFloat32, "_fp32"},
                                      {DType::kFloat64, "_fp64"},
                                      {DType::kBFloat16, "_bf16"},
                                      {DType::kFloat16, "_fp16"}}) {
    for (Case c : list) {
      c.name += suffix;
      c.dtype = dtype;
      all.push_back(c);
    }
  }
  return all;
}

class KernelsTest : public testing::TestWithParam<std::tuple<std::string, Case>> {
 protected:
  void SetUp() override { cpu::set_isa(std::get<0>(GetParam())); }
};

TEST_P(KernelsTest, ForwardAndBackwardEqualTheFormula) {
  const Case& c = std::get<1>(GetParam());
  Call call(c);
  call.run();
  const Expected expected = call.expected();
  const double allowed = tolerance(c.dtype);
  expect_near("output", call.out, expected.output, allowed);
  for (std::size_t n = 0; n < expected.logsumexp.size(); ++n) {
    if (expected.logsumexp[n] == -kInf) {
      EXPECT_EQ(call.lse_at(n), -kInf);
    } else {
      EXPECT_NEAR(call.lse_at(n), expected.logsumexp[n], call.is_double ? 1e-13 : 3e-6);
    }
  }
  // dS is formed from the rounded output: half-precision gradients carry that error, too.
  const double slack = c.dtype == DType::kFloat32 || c.dtype == DType::kFloat64 ? 2 : 4;
  expect_near("grad_query", call.dq, expected.grad_query, slack * allowed);
  expect_near("grad_key", call.dk, expected.grad_key, slack * allowed);
  expect_near("grad_value", call.dv, expected.grad_value, slack * allowed);
}

TEST_P(KernelsTest, PartsOfTheGradientEqualTheWhole) {
  const Case& c = std::get<1>(GetParam());
  if (c.dtype != DType::kFloat32) return;
  Call whole(c);
  whole.run();
  for (int wanted = 1; wanted < 7; ++wanted) {
    Call part(c);
    if ((wanted & 1) == 0) part.backward.grad_query.data = nullptr;
    if ((wanted & 2) == 0) part.backward.grad_key.data = nullptr;
    if ((wanted & 4) == 0) part.backward.grad_value.data = nullptr;
    part.run();
    if ((wanted & 1) != 0) {
      EXPECT_EQ(part.dq.memory, whole.dq.memory);
    }
    if ((wanted & 2) != 0) {
      EXPECT_EQ(part.dk.memory, whole.dk.memory);
    }
    if ((wanted & 4) != 0) {
      EXPECT_EQ(part.dv.memory, whole.dv.memory);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, KernelsTest,
                         testing::Combine(testing::ValuesIn(cpu::supported_isas()),
                                          testing::ValuesIn(cases())),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param).name;
                         });

}  // namespace
}  // namespace fused_attention::test
