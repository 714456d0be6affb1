// Autocast: query, key and value go to the autocast dtype, as torch's own attention's do. float64
// is left alone, masks too: they are added in the precision of the scores.
#include <ATen/autocast_mode.h>

#include "../attention_op.h"
#include "../registration.h"

namespace fused_attention {
namespace {

template <c10::DispatchKey key, c10::DeviceType device>
ForwardResult attention_forward_autocast(const ForwardTensors& tensors,
                                         const CallOptions& options) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const auto cast = [dtype = at::autocast::get_autocast_dtype(device)](const at::Tensor& tensor) {
    return tensor.defined() ? at::autocast::cached_cast(dtype, tensor, device) : tensor;
  };
  return call_attention_forward(
      {cast(tensors.query), cast(tensors.key), cast(tensors.value), tensors.attn_mask}, options);
}

FUSED_ATTENTION_LIBRARY_IMPL(AutocastCPU, m) {
  m.impl(
      "attention_forward",
      TORCH_FN((forward_kernel<
                attention_forward_autocast<c10::DispatchKey::AutocastCPU, c10::DeviceType::CPU>>)));
}

FUSED_ATTENTION_LIBRARY_IMPL(AutocastCUDA, m) {
  m.impl("attention_forward",
         TORCH_FN((forward_kernel<attention_forward_autocast<c10::DispatchKey::AutocastCUDA,
                                                             c10::DeviceType::CUDA>>)));
}

}  // namespace
}  // namespace fused_attention
