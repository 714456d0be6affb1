#include "run.h"

namespace fused_attention::cuda {

bool forward(const core::ForwardProblem& call, CUstream_st* stream) {
  switch (call.problem.dtype) {
    case core::DType::kBFloat16:
      return forward_bfloat16(call, stream);
    case core::DType::kFloat16:
      return forward_float16(call, stream);
    case core::DType::kFloat32:
      forward_float32(call, stream);
      return true;
    case core::DType::kFloat64:
      forward_float64(call, stream);
      return true;
    case core::DType::kBool:
      break;
  }
  return false;
}

void backward(const core::BackwardProblem& call, void* statistics, CUstream_st* stream) {
  if (call.problem.dtype == core::DType::kBFloat16) {
    backward_bfloat16(call, statistics, stream);
  } else {
    backward_float16(call, statistics, stream);
  }
}

}  // namespace fused_attention::cuda
