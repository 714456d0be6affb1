// Derivatives of attention as plain tensor operations, O(Sq Sk) memory: for forward-mode tangents
// and second derivatives, which no fused kernel gives. Differentiable themselves, to any order.
// They keep the contract of the kernels: rows that see nothing and hidden keys give exact zeros,
// NaN and inf count only where they are visible.
#pragma once

#include "../attention_op.h"

namespace fused_attention::formula {

/// Tangents of (output, logsumexp) from those of query, key, value (undefined = zero).
std::tuple<at::Tensor, at::Tensor> forward_tangents(const ForwardTensors& primal,
                                                    const std::array<at::Tensor, 3>& tangents,
                                                    const CallOptions& options);

/// The inputs of attention_backward that have derivatives: grad_output, grad_logsumexp (may be
/// undefined = zero), query, key, value.
using BackwardInputs = std::array<at::Tensor, 5>;

/// Tangents of (grad_query, grad_key, grad_value) from those of BackwardInputs (undefined = zero).
std::array<at::Tensor, 3> backward_tangents(const BackwardInputs& primal,
                                            const BackwardInputs& tangents,
                                            const std::optional<at::Tensor>& attn_mask,
                                            const CallOptions& options);

/// Gradients of BackwardInputs from those of (grad_query, grad_key, grad_value) (undefined = zero).
BackwardInputs backward_gradients(const BackwardInputs& primal,
                                  const std::array<at::Tensor, 3>& gradients,
                                  const std::optional<at::Tensor>& attn_mask,
                                  const CallOptions& options);

}  // namespace fused_attention::formula
