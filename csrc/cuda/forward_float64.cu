#include "launcher.cuh"
#include "run.h"

namespace fused_attention::cuda {

void forward_float64(const core::ForwardProblem& call, CUstream_st* stream) {
  forward_exact<double>(call, CudaLauncher{stream});
}

}  // namespace fused_attention::cuda
