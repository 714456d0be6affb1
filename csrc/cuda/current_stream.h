#pragma once

#include <c10/core/Device.h>

struct CUstream_st;

namespace fused_attention::cuda {

/// The current stream of a CUDA device, which is the current device.
CUstream_st* current_stream(c10::Device device);

}  // namespace fused_attention::cuda
