// The operators at key CUDA: check, allocate, launch on the current stream. Nothing here waits for
// the device.
#include <c10/core/DeviceGuard.h>

#include "../attention_backward.h"
#include "../attention_check.h"
#include "../attention_outputs.h"
#include "../registration.h"
#include "current_stream.h"
#include "launch.h"
#include "run.h"

namespace fused_attention {
namespace {

ForwardResult attention_forward_cuda(const ForwardTensors& tensors, const CallOptions& options) {
  check_forward(tensors, options);
  check_cuda_limits(tensors, /*with_gradient=*/false);
  const c10::DeviceGuard guard(tensors.query.device());
  const core::Problem problem = make_problem(tensors, options);
  ForwardResult result = empty_forward_result(tensors);
  const auto& [output, logsumexp, rng_state] = result;
  if (logsumexp.numel() == 0) {
    return result;
  }
  const c10::Device device = tensors.query.device();
  cuda::KeySplit split;
  split.chunks = cuda::forward_chunks(problem, cuda::multiprocessors(device.index()));
  const std::int64_t numbers = cuda::partial_numbers(problem.sizes, split.chunks);
  const at::Tensor partials = at::empty({numbers}, logsumexp.options());
  split.partials = partials.mutable_data_ptr();
  const bool found = cuda::forward(
      {.problem = problem, .output = to_operand(output), .logsumexp = logsumexp.mutable_data_ptr()},
      split, cuda::current_stream(device));
  TORCH_INTERNAL_ASSERT(found);
  return result;
}

BackwardResult attention_backward_cuda(const BackwardTensors& tensors, const GradInputMask& wanted,
                                       const CallOptions& options) {
  check_backward(tensors, wanted, options);
  check_cuda_limits(tensors.inputs, /*with_gradient=*/true);
  const at::Tensor& query = tensors.inputs.query;
  const c10::DeviceGuard guard(query.device());
  // One number expanded, as the gradient of a sum is, would keep all operands from being copied in
  // chunks.
  const at::Tensor grad_output =
      tensors.grad_output.stride(3) == 1 ? tensors.grad_output : tensors.grad_output.contiguous();
  const BackwardTensors in_rows{grad_output,       tensors.grad_logsumexp, tensors.output,
                                tensors.logsumexp, tensors.rng_state,      tensors.inputs};
  return run_backward(in_rows, wanted, options, [&](const core::BackwardProblem& call) {
    const at::Tensor statistics =
        at::empty({query.size(0), query.size(1), query.size(2), cuda::kStatisticsNumbers},
                  query.options().dtype(accumulation_type(query.scalar_type())));
    const bool found =
        cuda::backward(call, statistics.mutable_data_ptr(), cuda::current_stream(query.device()));
    TORCH_INTERNAL_ASSERT(found);
  });
}

FUSED_ATTENTION_LIBRARY_IMPL(CUDA, m) {
  m.impl("attention_forward", TORCH_FN(forward_kernel<attention_forward_cuda>));
  m.impl("attention_backward", TORCH_FN(backward_kernel<attention_backward_cuda>));
}

}  // namespace
}  // namespace fused_attention
