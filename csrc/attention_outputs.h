// The tensors that the operators return. Real and fake kernels call the same functions, so that
// both have the same sizes and strides by construction.
#pragma once

#include "attention_op.h"

namespace fused_attention {

/// An uninitialised tensor of `sizes` whose dimensions lie in memory in the order of those of
/// `like`: dense, dimensions of stride 0 outermost.
at::Tensor empty_in_order_of(const at::Tensor& like, c10::SymIntArrayRef sizes);

/// output (B, Hq, Sq, Dv) in query's stride order, logsumexp (B, Hq, Sq) contiguous, rng_state_out
/// with 0 elements.
ForwardResult empty_forward_result(const ForwardTensors& tensors);

/// Each gradient in the stride order of its input; 0 elements where none is wanted.
BackwardResult empty_backward_result(const ForwardTensors& tensors, const GradInputMask& wanted);

}  // namespace fused_attention
