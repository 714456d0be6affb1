#include "backward_launch.h"
#include "launcher.cuh"
#include "run.h"

namespace fused_attention::cuda {

bool backward_bfloat16(const core::BackwardProblem& call, void* statistics, CUstream_st* stream) {
  return backward_half<BFloat16>(call, statistics, CudaLauncher{stream});
}

}  // namespace fused_attention::cuda
