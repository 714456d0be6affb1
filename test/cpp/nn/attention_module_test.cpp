// nn::Attention against its definition, and against the numbers of the Python module: the same
// values stand in test/python/test_nn.py.
#include <fused_attention/nn/attention.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace fused_attention::nn {
namespace {

using torch::Tensor;

/// Parameter number p holds 0.3 cos(0.7 n + p) at its flat index n, as in the Python test.
void fill_by_formula(Attention& module) {
  const torch::NoGradGuard no_grad;
  double p = 0;
  for (Tensor& parameter : module->parameters()) {
    const Tensor n = torch::arange(parameter.numel(), torch::kDouble);
    parameter.copy_((0.3 * torch::cos(0.7 * n + p)).view_as(parameter));
    ++p;
  }
}

Attention golden_module() {
  Attention module(
      AttentionOptions(12, 4).num_kv_heads(2).bias(true).head_dim(6).causal(true).rope(true));
  module->to(torch::kDouble);
  fill_by_formula(module);
  return module;
}

Tensor golden_input() {
  return torch::sin(0.3 * torch::arange(120, torch::kDouble)).view({2, 5, 12});
}

/// Rotary embedding in complex numbers: (c, c + D/2) times exp(i p theta^(-2 c / D)).
Tensor rotated(const Tensor& heads_first) {
  const std::int64_t half = heads_first.size(-1) / 2;
  const Tensor number =
      torch::complex(heads_first.narrow(-1, 0, half), heads_first.narrow(-1, half, half));
  const Tensor speed =
      torch::pow(10000.0, -torch::arange(half, torch::kDouble) / static_cast<double>(half));
  const Tensor angle = torch::arange(heads_first.size(-2), torch::kDouble).unsqueeze(1) * speed;
  const Tensor turned = number * torch::polar(torch::ones_like(angle), angle);
  return torch::cat({torch::real(turned), torch::imag(turned)}, -1);
}

/// The layer by its definition.
Tensor definition(Attention& module, const Tensor& x) {
  const auto& options = module->options;
  const std::int64_t heads = options.num_heads();
  const std::int64_t kv_heads = options.num_kv_heads().value_or(heads);
  const auto split = [&](torch::nn::Linear& projection, std::int64_t count) {
    const Tensor t = projection->forward(x).unflatten(-1, {count, -1}).transpose(1, 2);
    return t.repeat_interleave(heads / count, 1);
  };
  Tensor q = split(module->q_proj, heads);
  Tensor k = split(module->k_proj, kv_heads);
  if (options.rope()) {
    q = rotated(q);
    k = rotated(k);
  }
  Tensor scores =
      torch::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(-1)));
  if (options.causal()) {
    const Tensor shown = torch::ones({x.size(1), x.size(1)}, torch::kBool).tril();
    scores = scores.masked_fill(~shown, -std::numeric_limits<double>::infinity());
  }
  const Tensor heads_out =
      torch::matmul(torch::softmax(scores, -1), split(module->v_proj, kv_heads));
  return module->o_proj->forward(heads_out.transpose(1, 2).flatten(2));
}

TEST(NnAttention, EqualsItsDefinitionForwardAndBackward) {
  torch::manual_seed(11);
  for (const bool causal : {false, true}) {
    for (const bool rope : {false, true}) {
      for (const std::int64_t kv_heads : {4, 2, 1}) {
        Attention module(
            AttentionOptions(24, 4).num_kv_heads(kv_heads).bias(rope).causal(causal).rope(rope));
        module->to(torch::kDouble);
        const Tensor x = torch::randn({2, 9, 24}, torch::kDouble);
        const Tensor got = module->forward(x);
        const Tensor want = definition(module, x);
        EXPECT_TRUE(torch::allclose(got, want, 1e-10, 1e-12));
        const auto parameters = module->parameters();
        const auto got_grads = torch::autograd::grad({got.square().sum()}, parameters);
        const auto want_grads = torch::autograd::grad({want.square().sum()}, parameters);
        for (std::size_t n = 0; n < parameters.size(); ++n) {
          EXPECT_TRUE(torch::allclose(got_grads[n], want_grads[n], 1e-8, 1e-10)) << n;
        }
      }
    }
  }
}

TEST(NnAttention, GivesTheNumbersOfThePythonModule) {
  Attention module = golden_module();
  const Tensor output = module->forward(golden_input());
  const Tensor grad =
      torch::autograd::grad({output.square().sum()}, {module->k_proj->weight}).front();
  const std::array<Tensor, 6> got = {output[0][0][0], output[0][4][11], output[1][2][5],
                                     grad[0][0],      grad[11][11],     grad[5][3]};
  const std::array<double, 6> want = {0.203574913868, -0.015018999615, 0.102618487289,
                                      0.018445619465, 0.182760105554,  0.045454166157};
  for (std::size_t n = 0; n < want.size(); ++n) {
    EXPECT_NEAR(got[n].item<double>(), want[n], 1e-11) << n;
  }
}

TEST(NnAttention, NamesItsParametersAsThePythonStateDictDoes) {
  Attention module = golden_module();
  std::vector<std::string> names;
  for (const auto& item : module->named_parameters()) names.push_back(item.key());
  EXPECT_EQ(names, (std::vector<std::string>{"q_proj.weight", "q_proj.bias", "k_proj.weight",
                                             "k_proj.bias", "v_proj.weight", "v_proj.bias",
                                             "o_proj.weight", "o_proj.bias"}));
  EXPECT_EQ(module->named_buffers().size(), 0U);
}

TEST(NnAttention, SurvivesAFileAndACopy) {
  Attention module = golden_module();
  std::stringstream file;
  torch::save(module, file);
  Attention loaded(module->options);
  loaded->to(torch::kDouble);
  torch::load(loaded, file);
  const Tensor x = golden_input();
  EXPECT_TRUE(torch::equal(loaded->forward(x), module->forward(x)));
  const auto copy = std::dynamic_pointer_cast<AttentionImpl>(module->clone());
  EXPECT_TRUE(torch::equal(copy->forward(x), module->forward(x)));
  EXPECT_NE(copy->q_proj->weight.data_ptr(), module->q_proj->weight.data_ptr());
}

TEST(NnAttention, TakesAMask) {
  Attention module(AttentionOptions(12, 4).num_kv_heads(2));
  const Tensor x = torch::randn({1, 6, 12});
  const Tensor shown = torch::ones({6, 6}, torch::kBool).tril();
  Attention causal(AttentionOptions(12, 4).num_kv_heads(2).causal(true));
  const torch::NoGradGuard no_grad;
  for (std::size_t n = 0; n < module->parameters().size(); ++n) {
    causal->parameters()[n].copy_(module->parameters()[n]);
  }
  EXPECT_TRUE(torch::allclose(module->forward(x, shown), causal->forward(x), 1e-5, 1e-6));
}

TEST(NnAttention, RefusesOptionsThatDoNotFitTogether) {
  EXPECT_THROW(Attention(AttentionOptions(32, 4).num_kv_heads(3)), c10::Error);
  EXPECT_THROW(Attention(30, 4), c10::Error);
  EXPECT_THROW(Attention(AttentionOptions(12, 4).rope(true)), c10::Error);
}

TEST(NnAttention, CountsTheParametersOfALlamaLayer) {
  const auto count = [](std::int64_t kv_heads) {
    // An eighth of the width in every direction: 64 times fewer parameters than Llama 3 70B's
    // layer.
    Attention module(AttentionOptions(1024, 64).num_kv_heads(kv_heads).bias(false));
    std::int64_t total = 0;
    for (const Tensor& parameter : module->parameters()) total += parameter.numel();
    return total;
  };
  EXPECT_EQ(count(8), 150'994'944 / 64);
  EXPECT_EQ(count(64), 268'435'456 / 64);
}

}  // namespace
}  // namespace fused_attention::nn
