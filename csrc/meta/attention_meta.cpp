// Shapes, dtypes and strides without data: what torch.compile, export and the meta device see.
#include "../attention_check.h"
#include "../attention_outputs.h"
#include "../registration.h"

namespace fused_attention {
namespace {

ForwardResult attention_forward_meta(const ForwardTensors& tensors, const CallOptions& options) {
  check_forward(tensors, options);
  return empty_forward_result(tensors);
}

BackwardResult attention_backward_meta(const BackwardTensors& tensors, const GradInputMask& wanted,
                                       const CallOptions& options) {
  check_backward(tensors, wanted, options);
  return empty_backward_result(tensors.inputs, wanted);
}

FUSED_ATTENTION_LIBRARY_IMPL(Meta, m) {
  m.impl("attention_forward", TORCH_FN(forward_kernel<attention_forward_meta>));
  m.impl("attention_backward", TORCH_FN(backward_kernel<attention_backward_meta>));
}

}  // namespace
}  // namespace fused_attention
