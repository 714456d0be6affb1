// Fused attention for C++ programs. Letters: B batch, Hq / Hkv query / key-value heads, Sq / Sk
// lengths, D query-key head dim, Dv value head dim.
//
//   auto out = fused_attention::attention(q, k, v, AttentionOptions().is_causal(true));
#pragma once

#include <ATen/core/Tensor.h>
#include <fused_attention/export.h>
#include <torch/arg.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

namespace fused_attention {

/// The options of an attention call, with torch's names and defaults.
struct AttentionOptions {
  using Window = std::array<std::int64_t, 2>;

  /// Broadcasts to (B, Hq, Sq, Sk), aligned from the right, any strides; never expanded in memory.
  /// bool: true = attend. float32, float64, bfloat16, float16: added to the scores, in
  /// float32 (float64 for float64 inputs); -inf hides.
  TORCH_ARG(std::optional<at::Tensor>, attn_mask);
  /// Only 0 is supported yet.
  TORCH_ARG(double, dropout_p) = 0.0;
  /// Row i sees the keys j <= i + diagonal_offset (top-left alignment, as in torch).
  TORCH_ARG(bool, is_causal) = false;
  /// Any number up to +-1e38 (any finite one for float64); 1/sqrt(D) when absent.
  TORCH_ARG(std::optional<double>, scale);
  /// False makes Hq != Hkv an error; otherwise query head h reads kv head h / (Hq / Hkv).
  TORCH_ARG(bool, enable_gqa) = true;
  /// Moves the diagonal of is_causal and window_size. Sk - Sq aligns them bottom-right.
  TORCH_ARG(std::int64_t, diagonal_offset) = 0;
  /// (left, right): row i sees i + offset - left <= j <= i + offset + right, both inclusive; -1 =
  /// no limit.
  TORCH_ARG(Window, window_size) = { -1, -1 };
};

/// softmax(scale * query key^T + mask) value (Vaswani et al. 2017, section 3.2.1; grouped heads:
/// Ainslie et al. 2023). query (B, Hq, Sq, D), key (B, Hkv, Sk, D), value (B, Hkv, Sk, Dv), one
/// dtype of float32, float64, bfloat16, float16, any strides; also (H, S, D), (S, D) and further
/// leading dimensions. Key and value of batch 1 broadcast. Returns (B, Hq, Sq, Dv) in the stride
/// order of query. A row that sees nothing gives 0. Differentiable in query, key and value, twice.
/// Throws c10::Error on invalid input.
FUSED_ATTENTION_API at::Tensor attention(const at::Tensor& query, const at::Tensor& key,
                                         const at::Tensor& value,
                                         const AttentionOptions& options = {});

/// As `attention`, and the natural logarithm of the sum of exp(score) of each row: (B, Hq, Sq),
/// float32 (float64 for float64), -inf for a row that sees nothing. Differentiable too.
FUSED_ATTENTION_API std::tuple<at::Tensor, at::Tensor> attention_with_lse(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const AttentionOptions& options = {});

/// The operator beneath, 4-D only: (output, logsumexp, rng_state_out). rng_state_out has 0
/// elements.
FUSED_ATTENTION_API std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_forward(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const AttentionOptions& options = {});

/// Gradients of query, key, value, attn_mask, sinks and alibi_slopes from those of output and (when
/// given) logsumexp; 0 elements where `grad_input_mask` is false. The last three cannot be asked
/// for yet.
FUSED_ATTENTION_API
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
attention_backward(const at::Tensor& grad_output, const std::optional<at::Tensor>& grad_logsumexp,
                   const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                   const at::Tensor& output, const at::Tensor& logsumexp,
                   const at::Tensor& rng_state, std::array<bool, 6> grad_input_mask,
                   const AttentionOptions& options = {});

}  // namespace fused_attention
