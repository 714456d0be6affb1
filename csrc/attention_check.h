// All validation of an attention call, for the CPU, CUDA and fake routes alike, and the step from
// checked tensors to the problem that kernels understand. Sizes may be symbolic, backed or not.
#pragma once

#include "attention_op.h"
#include "core/problem.h"

namespace fused_attention {

/// Raises `fused_attention::attention: expected <rule>, but got ...` unless the arguments of
/// attention_forward are valid: query (B, Hq, Sq, D), key (B or 1, Hkv, Sk, D), value
/// (B or 1, Hkv, Sk, Dv), attn_mask broadcastable to (B, Hq, Sq, Sk).
void check_forward(const ForwardTensors& tensors, const CallOptions& options);

/// The same for attention_backward: grad_output and output (B, Hq, Sq, Dv), logsumexp and
/// grad_logsumexp (B, Hq, Sq).
void check_backward(const BackwardTensors& tensors, const GradInputMask& wanted,
                    const CallOptions& options);

/// Limits of the CUDA kernels, of which those of Dv hold only `with_gradient`. Ask check_forward
/// before.
void check_cuda_limits(const ForwardTensors& tensors, bool with_gradient);

/// All tensors are defined, strided, neither nested nor quantized: what has to be known before
/// sizes are looked at, and before the dispatcher finds no kernel for another layout.
void check_dense(const ForwardTensors& tensors);
void check_dense(const BackwardTensors& tensors);

/// Rules for folding any number of leading dimensions. Ask check_dense before.
void check_foldable(const ForwardTensors& tensors);

/// Checked tensors with real sizes as a problem. Its pointers live as long as the tensors.
core::Problem make_problem(const ForwardTensors& tensors, const CallOptions& options);

core::ConstOperand to_const_operand(const at::Tensor& tensor);
core::Operand to_operand(const at::Tensor& tensor);

/// fp64 for fp64, else fp32: the type of scores, sums and logsumexp.
c10::ScalarType accumulation_type(c10::ScalarType dtype);

}  // namespace fused_attention
