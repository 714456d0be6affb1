// The long argument lists of the operators, in one place: grouped structs, the adaptors that make a
// dispatcher kernel of a function over them, and the calls back into the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/SymInt.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

namespace fused_attention {

struct ForwardTensors {
  const at::Tensor& query;
  const at::Tensor& key;
  const at::Tensor& value;
  const std::optional<at::Tensor>& attn_mask;
};

struct BackwardTensors {
  const at::Tensor& grad_output;
  const std::optional<at::Tensor>& grad_logsumexp;
  const at::Tensor& output;
  const at::Tensor& logsumexp;
  const at::Tensor& rng_state;
  ForwardTensors inputs;
};

/// Everything else that the schemas take.
struct CallOptions {
  double dropout_p = 0.0;
  bool is_causal = false;
  std::optional<double> scale = std::nullopt;
  c10::SymInt diagonal_offset = 0;
  std::array<std::int64_t, 2> window_size = {-1, -1};
  double softcap = 0.0;
  std::optional<at::Tensor> sinks = std::nullopt;
  std::optional<at::Tensor> alibi_slopes = std::nullopt;
  std::optional<at::Tensor> seqused_k = std::nullopt;
  std::optional<at::Tensor> rng_state = std::nullopt;
};

/// Which gradients are wanted: query, key, value, attn_mask, sinks, alibi_slopes.
using GradInputMask = std::array<bool, 6>;

/// output, logsumexp, rng_state_out.
using ForwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// Gradients in the order of GradInputMask; 0 elements where none is wanted.
using BackwardResult =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

using OptionalTensor = const std::optional<at::Tensor>&;

/// `window_size` of the schemas as an array; raises when it does not have two entries.
std::array<std::int64_t, 2> to_window(c10::IntArrayRef window_size);

/// The operators through the dispatcher.
ForwardResult call_attention_forward(const ForwardTensors& tensors, const CallOptions& options);
BackwardResult call_attention_backward(const BackwardTensors& tensors, const GradInputMask& wanted,
                                       const CallOptions& options);

template <ForwardResult (*kernel)(const ForwardTensors&, const CallOptions&)>
ForwardResult forward_kernel(const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, OptionalTensor attn_mask, double dropout_p,
                             bool is_causal, std::optional<double> scale,
                             c10::SymInt diagonal_offset, c10::IntArrayRef window_size,
                             double softcap, OptionalTensor sinks, OptionalTensor alibi_slopes,
                             OptionalTensor seqused_k, OptionalTensor rng_state) {
  return kernel({query, key, value, attn_mask},
                {dropout_p, is_causal, scale, std::move(diagonal_offset), to_window(window_size),
                 softcap, sinks, alibi_slopes, seqused_k, rng_state});
}

template <BackwardResult (*kernel)(const BackwardTensors&, const GradInputMask&,
                                   const CallOptions&)>
BackwardResult backward_kernel(const at::Tensor& grad_output, OptionalTensor grad_logsumexp,
                               const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const at::Tensor& output,
                               const at::Tensor& logsumexp, const at::Tensor& rng_state,
                               OptionalTensor attn_mask, double dropout_p, bool is_causal,
                               GradInputMask grad_input_mask, std::optional<double> scale,
                               c10::SymInt diagonal_offset, c10::IntArrayRef window_size,
                               double softcap, OptionalTensor sinks, OptionalTensor alibi_slopes,
                               OptionalTensor seqused_k) {
  return kernel(
      {grad_output, grad_logsumexp, output, logsumexp, rng_state, {query, key, value, attn_mask}},
      grad_input_mask,
      {dropout_p, is_causal, scale, std::move(diagonal_offset), to_window(window_size), softcap,
       sinks, alibi_slopes, seqused_k, std::nullopt});
}

}  // namespace fused_attention
