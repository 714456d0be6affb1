// The one description of an attention call that every backend understands.
//
// attention_check builds it from tensors; the schedule, the CPU kernels and the CUDA bodies read
// it. Torch-free, plain data, usable from device code.
#pragma once

#include <cstdint>

namespace fused_attention::core {

enum class DType : std::uint8_t { kFloat32, kFloat64, kBFloat16, kFloat16, kBool };

/// B, Hq, Hkv, Sq, Sk, D, Dv. Query head h reads key-value head h / (heads_q / heads_kv).
struct Sizes {
  std::int64_t batch = 0;
  std::int64_t heads_q = 0;
  std::int64_t heads_kv = 0;
  std::int64_t seq_q = 0;
  std::int64_t seq_k = 0;
  std::int64_t dim_qk = 0;
  std::int64_t dim_v = 0;
};

/// A (B, H, S, D) operand. Strides are in elements, may be anything, and are 0 where the operand is
/// broadcast.
struct ConstOperand {
  const void* data = nullptr;
  std::int64_t stride_b = 0;
  std::int64_t stride_h = 0;
  std::int64_t stride_s = 0;
  std::int64_t stride_d = 0;
};

/// As ConstOperand, written. `data == nullptr` means that nobody asks for this result.
struct Operand {
  void* data = nullptr;
  std::int64_t stride_b = 0;
  std::int64_t stride_h = 0;
  std::int64_t stride_s = 0;
  std::int64_t stride_d = 0;
};

/// Causal, offset and window as one band: row i sees key j when i + lower <= j <= i + upper.
/// Both ends are clamped to +-(Sq + Sk + 1), so i + lower and i + upper never overflow.
struct Band {
  std::int64_t lower = 0;
  std::int64_t upper = 0;
};

/// A mask that broadcasts to (B, Hq, Sq, Sk), never expanded: strides in elements, 0 where
/// broadcast. kBool: true = attend. A float type: added to the score, -inf hides. `data ==
/// nullptr`: no mask.
struct DenseMask {
  const void* data = nullptr;
  DType dtype = DType::kBool;
  std::int64_t stride_b = 0;
  std::int64_t stride_h = 0;
  std::int64_t stride_q = 0;
  std::int64_t stride_k = 0;
};

struct Problem {
  Sizes sizes;
  DType dtype = DType::kFloat32;  // of query, key, value, output and their gradients
  double scale = 1.0;
  Band band;
  DenseMask mask;
  ConstOperand query;
  ConstOperand key;
  ConstOperand value;
};

/// `logsumexp`: (B, Hq, Sq) contiguous, float (double for kFloat64), natural log, -inf for a row
/// that sees nothing.
struct ForwardProblem {
  Problem problem;
  Operand output;
  void* logsumexp = nullptr;
};

/// `grad_logsumexp`: as `logsumexp`, or nullptr when it is zero.
struct BackwardProblem {
  Problem problem;
  ConstOperand output;
  ConstOperand grad_output;
  const void* logsumexp = nullptr;
  const void* grad_logsumexp = nullptr;
  Operand grad_query;
  Operand grad_key;
  Operand grad_value;
};

}  // namespace fused_attention::core
