#include "launcher.cuh"
#include "run.h"

namespace fused_attention::cuda {

bool forward_bfloat16(const core::ForwardProblem& call, const KeySplit& split,
                      CUstream_st* stream) {
  return forward_half<BFloat16>(call, split, CudaLauncher{stream});
}

}  // namespace fused_attention::cuda
