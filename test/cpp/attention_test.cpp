// The operator as a C++ program sees it: options, values against the formula, autograd, errors.
#include <fused_attention/attention.h>
#include <fused_attention/cpu.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace fused_attention {
namespace {

using torch::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Reference {
  Tensor output;
  Tensor logsumexp;
};

/// (Sq, Sk): true where row i sees key j through causal, offset and window.
Tensor visible_keys(std::int64_t seq_q, std::int64_t seq_k, const AttentionOptions& options) {
  const Tensor i = torch::arange(seq_q).unsqueeze(1) + options.diagonal_offset();
  const Tensor j = torch::arange(seq_k).unsqueeze(0);
  Tensor visible = torch::ones({seq_q, seq_k}, torch::kBool);
  const auto [left, right] = options.window_size();
  if (options.is_causal()) visible = visible & (j <= i);
  if (left >= 0) visible = visible & (j >= i - left);
  if (right >= 0) visible = visible & (j <= i + right);
  return visible;
}

/// The materialised formula in float64, differentiable.
Reference reference(const Tensor& query, const Tensor& key, const Tensor& value,
                    const AttentionOptions& options) {
  const std::int64_t group = query.size(1) / key.size(1);
  const Tensor k = key.to(torch::kDouble).repeat_interleave(group, 1);
  const Tensor v = value.to(torch::kDouble).repeat_interleave(group, 1);
  const double scale =
      options.scale().value_or(1.0 / std::sqrt(static_cast<double>(query.size(3))));
  Tensor scores = scale * torch::matmul(query.to(torch::kDouble), k.transpose(-1, -2));
  Tensor hidden = ~visible_keys(query.size(2), key.size(2), options);
  if (options.attn_mask().has_value()) {
    const Tensor& mask = *options.attn_mask();
    if (mask.scalar_type() == torch::kBool) {
      hidden = hidden | ~mask;
    } else {
      scores = scores + mask.to(torch::kDouble);
    }
  }
  scores = scores.masked_fill(hidden, -kInfinity);
  const Tensor empty = (scores == -kInfinity).all(-1, /*keepdim=*/true);
  const Tensor weights = torch::softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0);
  return {torch::matmul(weights, v), torch::logsumexp(scores, -1)};
}

struct Inputs {
  Tensor query;
  Tensor key;
  Tensor value;
  Tensor grad_output;
};

Inputs make_inputs(torch::ScalarType dtype) {
  torch::manual_seed(17);
  const auto random = [&](std::int64_t heads, std::int64_t seq, std::int64_t dim) {
    return torch::randn({2, heads, seq, dim}, torch::kDouble).to(dtype);
  };
  return {random(6, 33, 24).requires_grad_(), random(2, 45, 24).requires_grad_(),
          random(2, 45, 40).requires_grad_(), random(6, 33, 40)};
}

double largest_difference(const Tensor& a, const Tensor& b) {
  return (a.to(torch::kDouble) - b.to(torch::kDouble)).abs().max().item<double>();
}

void expect_close(const Tensor& actual, const Tensor& expected, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_LE(largest_difference(actual, expected), tolerance) << what;
}

void expect_reference(const Inputs& x, const AttentionOptions& options, double tolerance) {
  const auto [output, logsumexp] = attention_with_lse(x.query, x.key, x.value, options);
  EXPECT_EQ(output.scalar_type(), x.query.scalar_type());
  const auto expected = reference(x.query, x.key, x.value, options);
  expect_close(output, expected.output, tolerance, "output");
  const Tensor seen = expected.logsumexp != -kInfinity;
  EXPECT_TRUE(torch::equal(logsumexp != -kInfinity, seen));
  expect_close(logsumexp.masked_fill(~seen, 0.0), expected.logsumexp.masked_fill(~seen, 0.0),
               tolerance, "logsumexp");
  const std::vector<Tensor> inputs = {x.query, x.key, x.value};
  const auto got = torch::autograd::grad({output}, inputs, {x.grad_output});
  const auto want =
      torch::autograd::grad({expected.output}, inputs, {x.grad_output.to(torch::kDouble)});
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    expect_close(got[n], want[n], 4 * tolerance, "gradient " + std::to_string(n));
  }
}

struct NamedOptions {
  std::string name;
  AttentionOptions options;
};

std::vector<NamedOptions> every_kind_of_options() {
  torch::manual_seed(3);
  const Tensor keep = torch::rand({2, 1, 33, 45}) < 0.7;
  keep.select(2, 5).fill_(false);
  const Tensor bias = torch::randn({6, 1, 45});
  return {{"plain", {}},
          {"causal", AttentionOptions().is_causal(true)},
          {"bottom right", AttentionOptions().is_causal(true).diagonal_offset(12)},
          {"empty rows", AttentionOptions().is_causal(true).diagonal_offset(-4)},
          {"window", AttentionOptions().window_size({5, 3}).diagonal_offset(2)},
          {"scale", AttentionOptions().scale(-0.4)},
          {"bool mask", AttentionOptions().attn_mask(keep)},
          {"float mask", AttentionOptions().attn_mask(bias).is_causal(true)}};
}

TEST(Attention, EqualsTheFormulaForwardAndBackwardOnEveryIsa) {
  const std::string before = active_cpu_isa();
  for (const std::string& isa : cpu_isas()) {
    set_cpu_isa(isa);
    for (const auto& [name, options] : every_kind_of_options()) {
      SCOPED_TRACE(isa + ", " + name);
      expect_reference(make_inputs(torch::kFloat), options, 1e-5);
      expect_reference(make_inputs(torch::kDouble), options, 1e-12);
      expect_reference(make_inputs(torch::kBFloat16), options, 0.02);
      expect_reference(make_inputs(torch::kHalf), options, 0.003);
    }
  }
  set_cpu_isa(before);
}

TEST(Attention, GivesTheOutputOfTheCallThatAlsoReturnsTheLogsumexp) {
  const Inputs x = make_inputs(torch::kFloat);
  const auto options = AttentionOptions().is_causal(true).window_size({7, 0});
  const auto [output, logsumexp] = attention_with_lse(x.query, x.key, x.value, options);
  EXPECT_TRUE(torch::equal(attention(x.query, x.key, x.value, options), output));
  EXPECT_EQ(logsumexp.scalar_type(), torch::kFloat);
}

TEST(Attention, LogsumexpIsDifferentiable) {
  const Inputs x = make_inputs(torch::kDouble);
  const std::vector<Tensor> inputs = {x.query, x.key};
  const Tensor got = std::get<1>(attention_with_lse(x.query, x.key, x.value)).square().sum();
  const Tensor want = reference(x.query, x.key, x.value, {}).logsumexp.square().sum();
  const auto got_grads = torch::autograd::grad({got}, inputs);
  const auto want_grads = torch::autograd::grad({want}, inputs);
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    expect_close(got_grads[n], want_grads[n], 1e-11, "gradient " + std::to_string(n));
  }
}

TEST(Attention, SecondDerivativeEqualsThatOfTheFormula) {
  const Inputs x = make_inputs(torch::kDouble);
  const auto options = AttentionOptions().is_causal(true).diagonal_offset(5);
  const auto second = [&](const Tensor& output) {
    const auto first =
        torch::autograd::grad({output.sin().sum()}, {x.query}, {}, /*retain_graph=*/true,
                              /*create_graph=*/true);
    return torch::autograd::grad({first[0].square().sum()}, {x.query, x.key, x.value});
  };
  const auto got = second(attention(x.query, x.key, x.value, options));
  const auto want = second(reference(x.query, x.key, x.value, options).output);
  for (std::size_t n = 0; n < got.size(); ++n) {
    expect_close(got[n], want[n], 1e-9, "second derivative " + std::to_string(n));
  }
}

TEST(Attention, BackwardOperatorGivesTheGradientsThatAutogradGives) {
  const Inputs x = make_inputs(torch::kFloat);
  const auto options = AttentionOptions().is_causal(true).scale(0.3);
  const auto expected = torch::autograd::grad({attention(x.query, x.key, x.value, options)},
                                              {x.query, x.key, x.value}, {x.grad_output});
  const torch::NoGradGuard no_grad;
  const auto [output, logsumexp, rng_state] = attention_forward(x.query, x.key, x.value, options);
  const auto [grad_query, grad_key, grad_value, grad_mask, grad_sinks, grad_slopes] =
      attention_backward(x.grad_output, std::nullopt, x.query, x.key, x.value, output, logsumexp,
                         rng_state, {true, false, true, false, false, false}, options);
  EXPECT_TRUE(torch::equal(grad_query, expected[0]));
  EXPECT_TRUE(torch::equal(grad_value, expected[2]));
  for (const Tensor* unasked : {&grad_key, &grad_mask, &grad_sinks, &grad_slopes}) {
    EXPECT_EQ(unasked->numel(), 0);
  }
}

TEST(Attention, RowsThatSeeNothingGiveZeroAndGetZero) {
  Inputs x = make_inputs(torch::kFloat);
  const auto options = AttentionOptions().is_causal(true).diagonal_offset(-10);
  const auto [output, logsumexp] = attention_with_lse(x.query, x.key, x.value, options);
  const auto nan = torch::full_like(x.grad_output.narrow(2, 0, 10), NAN);
  x.grad_output.narrow(2, 0, 10).copy_(nan);
  const auto grads = torch::autograd::grad({output}, {x.query, x.key, x.value}, {x.grad_output});
  EXPECT_EQ(output.narrow(2, 0, 10).abs().max().item<float>(), 0.0F);
  EXPECT_TRUE((logsumexp.narrow(2, 0, 10) == -kInfinity).all().item<bool>());
  EXPECT_EQ(grads[0].narrow(2, 0, 10).abs().max().item<float>(), 0.0F);
  for (const Tensor& grad : grads) EXPECT_TRUE(grad.isfinite().all().item<bool>());
}

TEST(Attention, FoldsLeadingDimensions) {
  torch::manual_seed(5);
  const Tensor q = torch::randn({2, 3, 4, 5, 8});
  const Tensor k = torch::randn({2, 3, 2, 7, 8});
  const Tensor want = attention(q.flatten(0, 1), k.flatten(0, 1), k.flatten(0, 1));
  EXPECT_TRUE(torch::equal(attention(q, k, k), want.unflatten(0, {2, 3})));
  EXPECT_TRUE(torch::equal(attention(q[0][0], k[0][0], k[0][0]), want[0]));
}

TEST(Attention, RecordsNothingUnderNoGrad) {
  const Inputs x = make_inputs(torch::kFloat);
  EXPECT_TRUE(attention(x.query, x.key, x.value).requires_grad());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(attention(x.query, x.key, x.value).requires_grad());
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(Attention, SaysWhatItExpectedAndWhatItGot) {
  const Tensor q = torch::ones({1, 3, 4, 8});
  const Tensor k = torch::ones({1, 2, 4, 8});
  const std::string heads = message_of([&] { attention(q, k, k); });
  EXPECT_EQ(heads.rfind("fused_attention::attention: expected ", 0), 0U) << heads;
  EXPECT_NE(heads.find("Hq = 3 and Hkv = 2"), std::string::npos) << heads;
  const Tensor four = torch::ones({1, 4, 4, 8});
  const std::string gqa =
      message_of([&] { attention(four, k, k, AttentionOptions().enable_gqa(false)); });
  EXPECT_NE(gqa.find("enable_gqa"), std::string::npos) << gqa;
  const std::string window =
      message_of([&] { attention(k, k, k, AttentionOptions().window_size({-2, 0})); });
  EXPECT_NE(window.find("window_size"), std::string::npos) << window;
  const std::string dropout =
      message_of([&] { attention(k, k, k, AttentionOptions().dropout_p(0.1)); });
  EXPECT_NE(dropout.find("not supported yet"), std::string::npos) << dropout;
}

TEST(CpuIsa, RefusesAnUnknownNameAndKeepsTheActiveOne) {
  const std::string before = active_cpu_isa();
  EXPECT_THROW(set_cpu_isa("pentium"), std::exception);
  EXPECT_EQ(active_cpu_isa(), before);
  EXPECT_EQ(cpu_isas().front(), "generic");
}

}  // namespace
}  // namespace fused_attention
