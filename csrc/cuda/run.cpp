#include "run.h"

namespace fused_attention::cuda {

bool forward(const core::ForwardProblem& call, const KeySplit& split, CUstream_st* stream) {
  switch (call.problem.dtype) {
    case core::DType::kBFloat16:
      return forward_bfloat16(call, split, stream);
    case core::DType::kFloat16:
      return forward_float16(call, split, stream);
    case core::DType::kFloat32:
      forward_float32(call, split, stream);
      return true;
    case core::DType::kFloat64:
      forward_float64(call, split, stream);
      return true;
    case core::DType::kBool:
      break;
  }
  return false;
}

bool backward(const core::BackwardProblem& call, void* statistics, CUstream_st* stream) {
  switch (call.problem.dtype) {
    case core::DType::kBFloat16:
      return backward_bfloat16(call, statistics, stream);
    case core::DType::kFloat16:
      return backward_float16(call, statistics, stream);
    case core::DType::kFloat32:
      backward_float32(call, statistics, stream);
      return true;
    case core::DType::kFloat64:
      backward_float64(call, statistics, stream);
      return true;
    case core::DType::kBool:
      break;
  }
  return false;
}

}  // namespace fused_attention::cuda
