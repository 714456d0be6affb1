#include "current_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace fused_attention::cuda {

// Asked of the device interface that torch_cuda registers: linking c10_cuda would tie the library
// to CUDA builds of torch.
CUstream_st* current_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  return static_cast<CUstream_st*>(guard.getStreamNativeHandle(guard.getStream(device)));
}

}  // namespace fused_attention::cuda
