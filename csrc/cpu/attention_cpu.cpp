// The operators at key CPU: check, allocate, hand the problem to the CPU kernels.
#include "../attention_check.h"
#include "../attention_outputs.h"
#include "../registration.h"
#include "run.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

namespace fused_attention {
namespace {

using at::Tensor;

ForwardResult attention_forward_cpu(const ForwardTensors& tensors, const CallOptions& options) {
  check_forward(tensors, options);
  ForwardResult result = empty_forward_result(tensors);
  const auto& [output, logsumexp, rng_state] = result;
  if (logsumexp.numel() > 0) {
    cpu::forward({.problem = make_problem(tensors, options),
                  .output = to_operand(output),
                  .logsumexp = logsumexp.mutable_data_ptr()});
  }
  return result;
}

/// Where the kernel writes a key or value gradient. It writes one per batch entry: for an operand
/// of batch 1 that was broadcast these are summed afterwards, in fp32 for half precision, though
/// each summand is rounded to the operand's type before, as where torch reduces an expanded
/// operand.
class BatchGradient {
 public:
  BatchGradient(const Tensor& gradient, bool is_wanted, std::int64_t batch)
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
  Tensor gradient_;
  Tensor per_batch_;
  bool is_wanted_;
};

BackwardResult attention_backward_cpu(const BackwardTensors& tensors, const GradInputMask& wanted,
                                      const CallOptions& options) {
  check_backward(tensors, wanted, options);
  const Tensor logsumexp = tensors.logsumexp.contiguous();
  const Tensor grad_logsumexp =
      tensors.grad_logsumexp.has_value() ? tensors.grad_logsumexp->contiguous() : Tensor();
  BackwardResult result = empty_backward_result(tensors.inputs, wanted);
  const auto& [grad_query, grad_key, grad_value, grad_mask, grad_sinks, grad_slopes] = result;
  if (!wanted[0] && !wanted[1] && !wanted[2]) {
    return result;
  }
  if (logsumexp.numel() == 0) {
    for (const Tensor* gradient : {&grad_query, &grad_key, &grad_value}) {
      gradient->zero_();
    }
    return result;
  }
  const std::int64_t batch = tensors.inputs.query.size(0);
  BatchGradient key_gradient(grad_key, wanted[1], batch);
  BatchGradient value_gradient(grad_value, wanted[2], batch);
  cpu::backward(
      {.problem = make_problem(tensors.inputs, options),
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

FUSED_ATTENTION_LIBRARY_IMPL(CPU, m) {
  m.impl("attention_forward", TORCH_FN(forward_kernel<attention_forward_cpu>));
  m.impl("attention_backward", TORCH_FN(backward_kernel<attention_backward_cpu>));
}

}  // namespace
}  // namespace fused_attention
