// A call of the kernels without torch: the memory of its tensors, and the work it does.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/mask.h"
#include "core/problem.h"

namespace fused_attention::bench {

enum class Mask {
  kNone,
  kBool,        // (Sq, Sk)
  kFloat,       // (Sq, Sk)
  kBoolOfKeys,  // (Sk)
};

struct Shape {
  const char* name;
  core::Sizes sizes;  // B, Hq, Hkv, Sq, Sk, D, Dv
  bool causal = false;
  Mask mask = Mask::kNone;
};

/// Contiguous tensors with arbitrary numbers below 2.
class Call {
 public:
  Call(const Shape& shape, core::DType dtype) {
    const core::Sizes& s = shape.sizes;
    core::Problem p;
    p.sizes = s;
    p.dtype = dtype;
    p.scale = 0.125;
    p.band = core::make_band(shape.causal, 0, -1, -1, s.seq_q, s.seq_k);
    if (shape.mask != Mask::kNone) {
      const core::DType type =
          shape.mask == Mask::kFloat ? core::DType::kFloat32 : core::DType::kBool;
      const std::int64_t rows = shape.mask == Mask::kBoolOfKeys ? 1 : s.seq_q;
      p.mask = {allocate(rows * s.seq_k, type), type, 0, 0, rows == 1 ? 0 : s.seq_k, 1};
    }
    p.query = input(tensor(s, s.heads_q, s.seq_q, s.dim_qk, dtype));
    p.key = input(tensor(s, s.heads_kv, s.seq_k, s.dim_qk, dtype));
    p.value = input(tensor(s, s.heads_kv, s.seq_k, s.dim_v, dtype));
    const core::Operand out = tensor(s, s.heads_q, s.seq_q, s.dim_v, dtype);
    void* lse = allocate(s.batch * s.heads_q * s.seq_q, core::DType::kFloat32);
    forward = {p, out, lse};
    backward.problem = p;
    backward.output = input(out);
    backward.grad_output = input(tensor(s, s.heads_q, s.seq_q, s.dim_v, dtype));
    backward.logsumexp = lse;
    backward.grad_query = tensor(s, s.heads_q, s.seq_q, s.dim_qk, dtype);
    backward.grad_key = tensor(s, s.heads_kv, s.seq_k, s.dim_qk, dtype);
    backward.grad_value = tensor(s, s.heads_kv, s.seq_k, s.dim_v, dtype);
  }

  core::ForwardProblem forward;
  core::BackwardProblem backward;  // reads the results of `forward`

 private:
  void* allocate(std::int64_t elements, core::DType dtype) {
    const std::int64_t size = dtype == core::DType::kFloat32 ? 4
                              : dtype == core::DType::kBool  ? 1
                                                             : 2;
    memory_.emplace_back(static_cast<std::size_t>(elements * size));
    unsigned char* data = memory_.back().data();
    for (std::int64_t i = 0; i < elements; ++i) {
      const float x = static_cast<float>((i * 2654435761U >> 7) % 1000) / 500 - 1;
      std::uint32_t bits;
      std::memcpy(&bits, &x, 4);
      // The upper half of a float below 1 is that bf16, and as fp16 another number below 2.
      const auto high = static_cast<std::uint16_t>(bits >> 16);
      if (size == 4) std::memcpy(data + i * 4, &x, 4);
      if (size == 2) std::memcpy(data + i * 2, &high, 2);
      if (size == 1) data[i] = x > -0.5;
    }
    return data;
  }
  core::Operand tensor(const core::Sizes& s, std::int64_t heads, std::int64_t seq, std::int64_t dim,
                       core::DType dtype) {
    return {allocate(s.batch * heads * seq * dim, dtype), heads * seq * dim, seq * dim, dim, 1};
  }
  static core::ConstOperand input(const core::Operand& x) {
    return {x.data, x.stride_b, x.stride_h, x.stride_s, x.stride_d};
  }

  std::vector<std::vector<unsigned char>> memory_;
};

/// Multiply-adds of the pairs that the band shows, as floating-point operations.
inline double flops(const Shape& shape, bool backward) {
  const core::Sizes& s = shape.sizes;
  const core::Band band = core::make_band(shape.causal, 0, -1, -1, s.seq_q, s.seq_k);
  double pairs = 0;
  for (std::int64_t i = 0; i < s.seq_q; ++i) {
    const auto keys = core::visible_keys(band, i, s.seq_k);
    pairs += static_cast<double>(core::max64(0, keys.end - keys.begin));
  }
  const auto dims = static_cast<double>(backward ? 3 * s.dim_qk + 2 * s.dim_v : s.dim_qk + s.dim_v);
  return 2 * static_cast<double>(s.batch * s.heads_q) * pairs * dims;
}

}  // namespace fused_attention::bench
