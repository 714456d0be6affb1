// The operators at key CUDA, moved to key CPU, with the emulator in place of a GPU: schema,
// autograd, checks, allocation and launch code are those of the library. Loaded beside it, this
// replaces its CPU kernels in the process.
#include "registration.h"
// What attention_cuda.cpp would register at key CUDA becomes a function.
#undef FUSED_ATTENTION_LIBRARY_IMPL
#define FUSED_ATTENTION_LIBRARY_IMPL(key, m) void register_kernels_of_##key(torch::Library& m)

#include "cuda/attention_cuda.cpp"
#include "emulator/cuda_runtime/runtime.h"
#include "emulator/operator/stream.h"

namespace fused_attention {
namespace cuda {

CUstream_st* current_stream(c10::Device /*device*/) { return emulated_stream(); }

}  // namespace cuda

namespace {

std::int64_t launches() {
  return static_cast<std::int64_t>(test::CudaRuntime::instance().launches().size());
}

}  // namespace

TORCH_LIBRARY(fused_attention_emulator, m) {
  m.def("launches() -> int", &launches);  // since the library was loaded
}

TORCH_LIBRARY_IMPL(fused_attention, CPU, m) { register_kernels_of_CUDA(m); }

}  // namespace fused_attention
