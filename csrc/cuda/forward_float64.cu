#include "launcher.cuh"
#include "run.h"

namespace fused_attention::cuda {

void forward_float64(const core::ForwardProblem& call, const KeySplit& split, CUstream_st* stream) {
  forward_exact<double>(call, split, CudaLauncher{stream});
}

}  // namespace fused_attention::cuda
