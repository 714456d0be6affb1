// The CPU kernels of every ISA of this machine against the formula in double.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "cpu/isa.h"
#include "cpu/run.h"
#include "reference.h"

namespace fused_attention::test {
namespace {

using core::DType;

enum class MaskKind { kNone, kBool, kBoolPerKey, kFloat, kFloatWithHidden };

struct Case {
  std::string name;
  DType dtype = DType::kFloat32;
  core::Sizes sizes;
  bool causal = false;
  std::int64_t offset = 0;
  std::int64_t left = -1;
  std::int64_t right = -1;
  MaskKind mask = MaskKind::kNone;
  bool strided = false;
  bool grad_lse = false;
  double sigma = 1;
  DType mask_dtype = DType::kFloat32;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// Inputs, outputs and the problem of a case.
struct Call {
  Tensor q, k, v, grad, out, dq, dk, dv;
  std::optional<Tensor> mask;
  core::ForwardProblem forward;
  core::BackwardProblem backward;
  std::vector<unsigned char> lse;
  std::vector<float> grad_lse_float;
  Row grad_lse;
  bool is_double;

  static Tensor make(const Case& c, std::int64_t heads, std::int64_t seq, std::int64_t dim,
                     int which) {
    if (!c.strided) return Tensor(c.dtype, c.sizes.batch, heads, seq, dim);
    if (which == 0) return Tensor(c.dtype, c.sizes.batch, heads, seq, dim, {0, 2, 1, 3}, 5);
    if (which == 1) return Tensor(c.dtype, c.sizes.batch, heads, seq, dim, {1, 0, 3, 2}, 3);
    return Tensor(c.dtype, c.sizes.batch, heads, seq, dim, {2, 0, 1, 3}, 1, 2);
  }

  explicit Call(const Case& c)
      : q(make(c, c.sizes.heads_q, c.sizes.seq_q, c.sizes.dim_qk, 0)),
        k(make(c, c.sizes.heads_kv, c.sizes.seq_k, c.sizes.dim_qk, 1)),
        v(make(c, c.sizes.heads_kv, c.sizes.seq_k, c.sizes.dim_v, 2)),
        grad(make(c, c.sizes.heads_q, c.sizes.seq_q, c.sizes.dim_v, 1)),
        out(make(c, c.sizes.heads_q, c.sizes.seq_q, c.sizes.dim_v, 0)),
        dq(make(c, c.sizes.heads_q, c.sizes.seq_q, c.sizes.dim_qk, 2)),
        dk(make(c, c.sizes.heads_kv, c.sizes.seq_k, c.sizes.dim_qk, 0)),
        dv(make(c, c.sizes.heads_kv, c.sizes.seq_k, c.sizes.dim_v, 1)),
        is_double(c.dtype == DType::kFloat64) {
    std::mt19937 random(static_cast<unsigned>(std::hash<std::string>{}(c.name)));
    q.fill_normal(random, c.sigma);
    k.fill_normal(random, c.sigma);
    v.fill_normal(random);
    grad.fill_normal(random);
    const core::Sizes& s = c.sizes;
    std::uniform_real_distribution<double> uniform;
    switch (c.mask) {
      case MaskKind::kNone:
        break;
      case MaskKind::kBool:
        mask.emplace(DType::kBool, s.batch, 1, s.seq_q, s.seq_k);
        mask->fill([&](auto, auto, auto i, auto) { return i % 5 != 3 && uniform(random) < 0.6; });
        break;
      case MaskKind::kBoolPerKey:
        mask.emplace(DType::kBool, s.batch, 1, 1, s.seq_k);
        mask->fill([&](auto, auto, auto, auto j) { return j % 7 != 2; });
        break;
      case MaskKind::kFloat:
      case MaskKind::kFloatWithHidden:
        mask.emplace(c.mask_dtype, 1, s.heads_q, s.seq_q, s.seq_k, std::vector<int>{1, 0, 3, 2}, 2);
        mask->fill([&](auto, auto, auto i, auto) {
          const bool hide = c.mask == MaskKind::kFloatWithHidden &&
                            (i % 6 == 1 || uniform(random) < 0.3);
          return hide ? -kInf : 2 * uniform(random);
        });
        break;
    }
    core::Problem problem;
    problem.sizes = s;
    problem.dtype = c.dtype;
    problem.scale = 1 / std::sqrt(static_cast<double>(s.dim_qk));
    problem.band = core::make_band(c.causal, c.offset, c.left, c.right, s.seq_q, s.seq_k);
    if (mask) problem.mask = mask->mask();
    problem.query = q.view();
    problem.key = k.view();
    problem.value = v.view();
    const auto rows = static_cast<std::size_t>(s.batch * s.heads_q * s.seq_q);
    lse.assign(rows * (is_double ? 8 : 4), 0xFF);
    if (c.grad_lse) {
      for (std::size_t n = 0; n < rows; ++n) {
        grad_lse_float.push_back(static_cast<float>(uniform(random) - 0.5));
        grad_lse.push_back(grad_lse_float.back());
      }
    }
    forward = {problem, out.output(), lse.data()};
    backward.problem = problem;
    backward.output = out.view();
    backward.grad_output = grad.view();
    backward.logsumexp = lse.data();
    if (c.grad_lse) {
      backward.grad_logsumexp =
          is_double ? static_cast<const void*>(grad_lse.data()) : grad_lse_float.data();
    }
    backward.grad_query = dq.output();
    backward.grad_key = dk.output();
    backward.grad_value = dv.output();
  }

  void run() {
    cpu::forward(forward);
    cpu::backward(backward);
  }
  Expected expected() const {
    return attend(q, k, v, grad, grad_lse, mask ? &*mask : nullptr, forward.problem.band,
                  forward.problem.scale);
  }
  double lse_at(std::size_t n) const {
    if (is_double) return reinterpret_cast<const double*>(lse.data())[n];
    return reinterpret_cast<const float*>(lse.data())[n];
  }
};

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
                        std::int64_t sk, std::int64_t d, std::int64_t dv) {
    return core::Sizes{b, hq, hkv, sq, sk, d, dv};
  };
  std::vector<Case> list = {
      {.name = "mha", .sizes = sizes(2, 2, 2, 33, 33, 16, 16)},
      {.name = "gqa_causal", .sizes = sizes(1, 6, 2, 129, 129, 64, 64), .causal = true},
      {.name = "mqa_odd_dims", .sizes = sizes(2, 4, 1, 31, 140, 7, 5), .causal = true, .offset = 40},
      {.name = "gqa_many_tiles", .sizes = sizes(1, 3, 1, 300, 517, 40, 24), .causal = true},
      {.name = "causal_wide_rows", .sizes = sizes(1, 2, 2, 333, 333, 80, 96), .causal = true},
      {.name = "more_queries_than_keys", .sizes = sizes(1, 2, 2, 50, 20, 8, 8), .causal = true, .offset = -30},
      {.name = "window", .sizes = sizes(1, 2, 1, 200, 200, 16, 16), .left = 17, .right = 3},
      {.name = "window_causal", .sizes = sizes(1, 2, 1, 300, 300, 16, 16), .causal = true, .left = 130},
      {.name = "decode", .sizes = sizes(1, 8, 2, 1, 300, 64, 64)},
      {.name = "decode_split", .sizes = sizes(1, 8, 1, 1, 2100, 32, 32)},
      {.name = "few_rows_split_causal", .sizes = sizes(1, 4, 1, 7, 1100, 24, 40), .causal = true, .offset = 1093},
      {.name = "one_by_one", .sizes = sizes(1, 1, 1, 1, 1, 1, 1)},
      {.name = "bool_mask", .sizes = sizes(2, 4, 2, 37, 150, 16, 16), .mask = MaskKind::kBool},
      {.name = "bool_mask_causal", .sizes = sizes(2, 4, 2, 60, 150, 16, 16), .causal = true, .offset = 20, .mask = MaskKind::kBool},
      {.name = "padding_mask", .sizes = sizes(2, 4, 2, 37, 150, 16, 16), .mask = MaskKind::kBoolPerKey},
      {.name = "float_mask", .sizes = sizes(2, 4, 2, 37, 150, 16, 16), .mask = MaskKind::kFloat},
      {.name = "half_mask_with_hidden", .sizes = sizes(2, 4, 2, 37, 150, 16, 16), .mask = MaskKind::kFloatWithHidden, .mask_dtype = DType::kFloat16},
      {.name = "double_mask_with_hidden", .sizes = sizes(1, 4, 2, 37, 150, 16, 16), .mask = MaskKind::kFloatWithHidden, .mask_dtype = DType::kFloat64},
      {.name = "strided", .sizes = sizes(2, 4, 2, 45, 67, 19, 11), .causal = true, .strided = true},
      {.name = "lse_gradient", .sizes = sizes(2, 4, 2, 45, 67, 16, 16), .grad_lse = true},
      {.name = "latent_dims", .sizes = sizes(1, 4, 1, 20, 70, 192, 128), .causal = true, .offset = 50},
      {.name = "no_keys", .sizes = sizes(1, 2, 1, 5, 0, 8, 8)},
      {.name = "no_queries", .sizes = sizes(1, 2, 1, 0, 5, 8, 8)},
  };
  std::vector<Case> all;
  for (const auto& [dtype, suffix] :
       {std::pair{DType::kFloat32, "_fp32"}, {DType::kFloat64, "_fp64"},
        {DType::kBFloat16, "_bf16"}, {DType::kFloat16, "_fp16"}}) {
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

INSTANTIATE_TEST_SUITE_P(
    EveryIsa, KernelsTest,
    testing::Combine(testing::ValuesIn(cpu::supported_isas()), testing::ValuesIn(cases())),
    [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).name; });

}  // namespace
}  // namespace fused_attention::test
