#include "launcher.cuh"
#include "run.h"

namespace fused_attention::cuda {

bool forward_float16(const core::ForwardProblem& call, CUstream_st* stream) {
  return forward_half<Float16>(call, CudaLauncher{stream});
}

}  // namespace fused_attention::cuda
