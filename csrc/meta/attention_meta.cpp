// Shapes, dtypes and strides without data: what torch.compile, export and the meta device see.
#include "../attention_check.h"
#include "../attention_outputs.h"
#include "../registration.h"

namespace fused_attention {
namespace {

/// Limits of the device that a fake tensor stands for. It is on the meta device here, but among its
/// keys is the backend of the other; a meta tensor has none.
void check_limits(const ForwardTensors& tensors, bool with_gradient) {
  if (tensors.query.key_set().has_backend(c10::BackendComponent::CUDABit)) {
    check_cuda_limits(tensors, with_gradient);
  }
}

ForwardResult attention_forward_meta(const ForwardTensors& tensors, const CallOptions& options) {
  check_forward(tensors, options);
  check_limits(tensors, /*with_gradient=*/false);
  return empty_forward_result(tensors);
}

BackwardResult attention_backward_meta(const BackwardTensors& tensors, const GradInputMask& wanted,
                                       const CallOptions& options) {
  check_backward(tensors, wanted, options);
  check_limits(tensors.inputs, /*with_gradient=*/true);
  return empty_backward_result(tensors.inputs, wanted);
}

FUSED_ATTENTION_LIBRARY_IMPL(Meta, m) {
  m.impl("attention_forward", TORCH_FN(forward_kernel<attention_forward_meta>));
  m.impl("attention_backward", TORCH_FN(backward_kernel<attention_backward_meta>));
}

}  // namespace
}  // namespace fused_attention
