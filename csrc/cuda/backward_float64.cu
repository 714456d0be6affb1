#include "backward_launch.h"
#include "launcher.cuh"
#include "run.h"

namespace fused_attention::cuda {

void backward_float64(const core::BackwardProblem& call, void* statistics, CUstream_st* stream) {
  backward_exact<double>(call, statistics, CudaLauncher{stream});
}

}  // namespace fused_attention::cuda
