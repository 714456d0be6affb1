#include "launcher.cuh"
#include "run.h"

namespace fused_attention::cuda {

void forward_float32(const core::ForwardProblem& call, CUstream_st* stream) {
  forward_exact<float>(call, CudaLauncher{stream});
}

}  // namespace fused_attention::cuda
