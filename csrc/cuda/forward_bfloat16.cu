#include "launcher.cuh"
#include "run.h"

namespace fused_attention::cuda {

bool forward_bfloat16(const core::ForwardProblem& call, CUstream_st* stream) {
  return forward_half<BFloat16>(call, CudaLauncher{stream});
}

}  // namespace fused_attention::cuda
