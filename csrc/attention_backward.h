// What the backward operators of all devices do around their kernels.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include "attention_check.h"
#include "attention_outputs.h"

namespace fused_attention {

/// Where the kernel writes a key or value gradient. It writes one per batch entry: for an operand
/// of batch 1 that was broadcast these are summed afterwards, in fp32 for half precision, though
/// each summand is rounded to the operand's type before, as where torch reduces an expanded
/// operand.
class BatchGradient {
 public:
  BatchGradient(const at::Tensor& gradient, bool is_wanted, std::int64_t batch)
      : gradient_(gradient), is_wanted_(is_wanted) {
    if (is_wanted && gradient.size(0) != batch) {
      auto sizes = gradient.sizes().vec();
      sizes[0] = batch;
      per_batch_ = at::empty(sizes, gradient.options());
    }
  }

  core::Operand operand() const {
    if (!is_wanted_) {
      return {};
    }
    return to_operand(per_batch_.defined() ? per_batch_ : gradient_);
  }

  void finish() {
    if (per_batch_.defined()) {
      at::sum_out(gradient_, per_batch_, /*dim=*/0, /*keepdim=*/true);
    }
  }

 private:
  at::Tensor gradient_;
  at::Tensor per_batch_;
  bool is_wanted_;
};

/// Allocates the gradients of a checked call and has `run(core::BackwardProblem)` write them.
template <class Run>
BackwardResult run_backward(const BackwardTensors& tensors, const GradInputMask& wanted,
                            const CallOptions& options, const Run& run) {
  const at::Tensor logsumexp = tensors.logsumexp.contiguous();
  const at::Tensor grad_logsumexp =
      tensors.grad_logsumexp.has_value() ? tensors.grad_logsumexp->contiguous() : at::Tensor();
  BackwardResult result = empty_backward_result(tensors.inputs, wanted);
  const auto& [grad_query, grad_key, grad_value, grad_mask, grad_sinks, grad_slopes] = result;
  if (!wanted[0] && !wanted[1] && !wanted[2]) {
    return result;
  }
  if (logsumexp.numel() == 0) {
    for (const at::Tensor* gradient : {&grad_query, &grad_key, &grad_value}) {
      gradient->zero_();
    }
    return result;
  }
  const std::int64_t batch = tensors.inputs.query.size(0);
  BatchGradient key_gradient(grad_key, wanted[1], batch);
  BatchGradient value_gradient(grad_value, wanted[2], batch);
  run(core::BackwardProblem{
      .problem = make_problem(tensors.inputs, options),
      .output = to_const_operand(tensors.output),
      .grad_output = to_const_operand(tensors.grad_output),
      .logsumexp = logsumexp.const_data_ptr(),
      .grad_logsumexp = grad_logsumexp.defined() ? grad_logsumexp.const_data_ptr() : nullptr,
      .grad_query = wanted[0] ? to_operand(grad_query) : core::Operand{},
      .grad_key = key_gradient.operand(),
      .grad_value = value_gradient.operand()});
  key_gradient.finish();
  value_gradient.finish();
  return result;
}

}  // namespace fused_attention
