#include "launcher.cuh"
#include "run.h"

namespace fused_attention::cuda {

bool forward_float16(const core::ForwardProblem& call, const KeySplit& split, CUstream_st* stream) {
  return forward_half<Float16>(call, split, CudaLauncher{stream});
}

}  // namespace fused_attention::cuda
