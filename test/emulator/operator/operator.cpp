// The operators at key CUDA, moved to key CPU, with the emulator in place of a GPU: schema,
// autograd, checks, allocation and launch code are those of the library. Loaded beside it, this
// replaces its CPU kernels in the process.
#include "registration.h"
// What attention_cuda.cpp would register at key CUDA becomes a function.
#undef FUSED_ATTENTION_LIBRARY_IMPL
#define FUSED_ATTENTION_LIBRARY_IMPL(key, m) void register_kernels_of_##key(torch::Library& m)

#include "cuda/attention_cuda.cpp"

namespace fused_attention {
namespace cuda {

/// Emulated kernels have run when their launch returns.
CUstream_st* current_stream(c10::Device /*device*/) { return nullptr; }

}  // namespace cuda

TORCH_LIBRARY_IMPL(fused_attention, CPU, m) { register_kernels_of_CUDA(m); }

}  // namespace fused_attention
