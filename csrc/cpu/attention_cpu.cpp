// The operators at key CPU: check, allocate, hand the problem to the CPU kernels.
#include "../attention_backward.h"
#include "../attention_check.h"
#include "../attention_outputs.h"
#include "../registration.h"
#include "run.h"

namespace fused_attention {
namespace {

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

BackwardResult attention_backward_cpu(const BackwardTensors& tensors, const GradInputMask& wanted,
                                      const CallOptions& options) {
  check_backward(tensors, wanted, options);
  return run_backward(tensors, wanted, options,
                      [](const core::BackwardProblem& call) { cpu::backward(call); });
}

FUSED_ATTENTION_LIBRARY_IMPL(CPU, m) {
  m.impl("attention_forward", TORCH_FN(forward_kernel<attention_forward_cpu>));
  m.impl("attention_backward", TORCH_FN(backward_kernel<attention_backward_cpu>));
}

}  // namespace
}  // namespace fused_attention
