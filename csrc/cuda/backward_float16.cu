#include "backward_launch.h"
#include "launcher.cuh"
#include "run.h"

namespace fused_attention::cuda {

void backward_float16(const core::BackwardProblem& call, void* statistics, CUstream_st* stream) {
  backward_half<Float16>(call, static_cast<RowStatistics*>(statistics), CudaLauncher{stream});
}

}  // namespace fused_attention::cuda
