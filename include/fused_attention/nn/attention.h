// A self-attention layer over the fused operator; the twin of the Python
// fused_attention.nn.Attention, with the same options and interchangeable parameters (q_proj,
// k_proj, v_proj, o_proj).
#pragma once

#include <fused_attention/export.h>
#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

namespace fused_attention::nn {

/// `AttentionOptions(512, 8).num_kv_heads(2).causal(true)`.
struct FUSED_ATTENTION_API AttentionOptions {
  AttentionOptions(std::int64_t embed_dim, std::int64_t num_heads);

  /// Width E of input and output.
  TORCH_ARG(std::int64_t, embed_dim);
  /// Query heads Hq.
  TORCH_ARG(std::int64_t, num_heads);
  /// Key-value heads Hkv, a divisor of num_heads; num_heads when absent.
  TORCH_ARG(std::optional<std::int64_t>, num_kv_heads);
  /// Biases in the four projections.
  TORCH_ARG(bool, bias) = true;
  /// D; embed_dim / num_heads when absent.
  TORCH_ARG(std::optional<std::int64_t>, head_dim);
  /// A position sees itself and those before it.
  TORCH_ARG(bool, causal) = false;
  /// Turn queries and keys by their position, see `rotate`.
  TORCH_ARG(bool, rope) = false;
  /// Base of the angles; tables are computed on the fly, there is no maximum length.
  TORCH_ARG(double, rope_theta) = 10000.0;
};

/// Rotary position embedding (Su et al. 2021, section 3.2.2) of a (..., S, H, D) tensor, D even, in
/// the half-rotation convention (GPT-NeoX): channel c < D/2 is paired with c + D/2, and turned by
/// the angle p * theta^(-2 c / D) at position p = start, start + 1, ... Same shape and dtype;
/// angles are computed in float32 (float64 for float64).
FUSED_ATTENTION_API torch::Tensor rotate(const torch::Tensor& tensor, double theta = 10000.0,
                                         std::int64_t start = 0);

/// Multi-head self-attention with grouped heads (Ainslie et al. 2023) and rotary positions. Throws
/// c10::Error when the options do not fit together.
class FUSED_ATTENTION_API AttentionImpl : public torch::nn::Cloneable<AttentionImpl> {
 public:
  AttentionImpl(std::int64_t embed_dim, std::int64_t num_heads)
      : AttentionImpl(AttentionOptions(embed_dim, num_heads)) {}
  explicit AttentionImpl(const AttentionOptions& options_);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// Input and output (..., S, E); `attn_mask` broadcasts to (..., Hq, S, S).
  torch::Tensor forward(const torch::Tensor& x,
                        const std::optional<torch::Tensor>& attn_mask = std::nullopt);

  AttentionOptions options;
  torch::nn::Linear q_proj{nullptr};
  torch::nn::Linear k_proj{nullptr};
  torch::nn::Linear v_proj{nullptr};
  torch::nn::Linear o_proj{nullptr};

 private:
  std::int64_t num_kv_heads() const { return options.num_kv_heads().value_or(options.num_heads()); }
  std::int64_t head_dim() const {
    return options.head_dim().value_or(options.embed_dim() / options.num_heads());
  }
};

TORCH_MODULE(Attention);

}  // namespace fused_attention::nn
