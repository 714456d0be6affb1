#pragma once

struct CUstream_st;

namespace fused_attention::cuda {

/// The one stream of the emulated device, other than the default one, which is null. Emulated
/// kernels have run when their launch returns.
inline CUstream_st* emulated_stream() {
  static char stream;
  return reinterpret_cast<CUstream_st*>(&stream);
}

}  // namespace fused_attention::cuda
