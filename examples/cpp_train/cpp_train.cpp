// Trains a tiny model with fused grouped-query attention in pure C++.
//
// The task: a sequence repeats a block of random tokens, and the next token is to be predicted.
// That takes looking back by one block, which is what attention with rotary positions can learn and
// what the rest of the model cannot do. Prints the loss, and exits with 1 if it has not fallen well
// below that of guessing.
#include <ATen/Parallel.h>
#include <fused_attention/nn/attention.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdint>
#include <cstdio>

namespace {

namespace F = torch::nn::functional;

constexpr std::int64_t kBatch = 16;
constexpr std::int64_t kLength = 64;  // S
constexpr std::int64_t kPeriod = 8;   // tokens in the block that repeats
constexpr std::int64_t kTokens = 16;  // size of the vocabulary
constexpr std::int64_t kWidth = 64;   // E
constexpr int kSteps = 100;

/// Embedding, one pre-norm block of attention and MLP, and a linear read-out. (B, S) -> (B, S,
/// tokens).
class ModelImpl : public torch::nn::Module {
 public:
  ModelImpl() {
    register_module("embedding", embedding_);
    register_module("attention_norm", attention_norm_);
    register_module("attention", attention_);
    register_module("mlp_norm", mlp_norm_);
    register_module("up", up_);
    register_module("down", down_);
    register_module("read_out", read_out_);
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = embedding_(tokens);
    x = x + attention_(attention_norm_(x));
    x = x + down_(F::gelu(up_(mlp_norm_(x))));
    return read_out_(x);
  }

 private:
  torch::nn::Embedding embedding_{kTokens, kWidth};
  torch::nn::LayerNorm attention_norm_{torch::nn::LayerNormOptions({kWidth})};
  fused_attention::nn::Attention attention_{
      fused_attention::nn::AttentionOptions(kWidth, 4).num_kv_heads(2).causal(true).rope(true)};
  torch::nn::LayerNorm mlp_norm_{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear up_{kWidth, 4 * kWidth};
  torch::nn::Linear down_{4 * kWidth, kWidth};
  torch::nn::Linear read_out_{kWidth, kTokens};
};
TORCH_MODULE(Model);

/// (B, S + 1) tokens: a random block, over and over.
torch::Tensor make_batch() {
  const torch::Tensor block = torch::randint(kTokens, {kBatch, kPeriod}, torch::kLong);
  return block.repeat({1, kLength / kPeriod + 1}).narrow(1, 0, kLength + 1);
}

}  // namespace

int main() {
  torch::manual_seed(0);
  at::set_num_threads(1);  // the tensors are so small that sharing them costs more than it gives
  Model model;
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(3e-3));

  // Cross entropy of guessing; the first block of each sequence cannot be predicted better.
  const double guessing = std::log(static_cast<double>(kTokens));
  std::printf("loss of guessing %.3f\n", guessing);
  double loss_value = guessing;
  for (int step = 0; step <= kSteps; ++step) {
    const torch::Tensor tokens = make_batch();
    const torch::Tensor logits = model(tokens.narrow(1, 0, kLength));
    const torch::Tensor loss =
        F::cross_entropy(logits.narrow(1, kPeriod, kLength - kPeriod).flatten(0, 1),
                         tokens.narrow(1, kPeriod + 1, kLength - kPeriod).flatten());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
    if (step % 10 == 0) {
      std::printf("step %3d  loss %.3f\n", step, loss_value);
    }
  }
  if (!(loss_value < guessing / 2)) {
    std::puts("the loss did not fall");
    return 1;
  }
  return 0;
}
