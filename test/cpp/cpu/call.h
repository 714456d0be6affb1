// A test case of the kernels: inputs, outputs and the problem they make. Torch-free.
#pragma once

#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "cpu/run.h"
#include "reference.h"

namespace fused_attention::test {

using core::DType;

enum class MaskKind {
  kNone,
  kBool,
  kBoolBytes,
  kBoolBlocks,
  kBoolPerKey,
  kFloat,
  kFloatWithHidden
};

/// Memory orders whose rows are whole 16-byte chunks, in a larger buffer.
enum class ChunkedRows {
  kContiguous,
  kTransposed,  // (B, S, H, D), as a projection to all heads leaves it
  kSpaced,      // other elements between the rows
  kExpanded,    // one batch of queries and values, one head of keys
};

struct Case {
  std::string name;
  DType dtype = DType::kFloat32;
  core::Sizes sizes = {};
  bool causal = false;
  std::int64_t offset = 0;
  std::int64_t left = -1;
  std::int64_t right = -1;
  MaskKind mask = MaskKind::kNone;
  bool strided = false;
  bool grad_lse = false;
  double sigma = 1;
  DType mask_dtype = DType::kFloat32;
  ChunkedRows rows = ChunkedRows::kContiguous;
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

/// Inputs, outputs and the problem of a case.
struct Call {
  Tensor q, k, v, grad, out, dq, dk, dv;
  std::optional<Tensor> mask;
  core::ForwardProblem forward;
  core::BackwardProblem backward;
  std::vector<unsigned char> lse;
  std::vector<float> grad_lse_float;
  Row grad_lse;
  bool is_double;

  static Tensor make(const Case& c, std::int64_t heads, std::int64_t seq, std::int64_t dim,
                     int which) {
    constexpr std::int64_t kMargin = 16;
    switch (c.rows) {
      case ChunkedRows::kContiguous:
        break;
      case ChunkedRows::kTransposed:
        return Tensor(c.dtype, c.sizes.batch, heads, seq, dim, {0, 2, 1, 3}, 0, 1, kMargin);
      case ChunkedRows::kSpaced:
        return Tensor(c.dtype, c.sizes.batch, heads, seq, dim, {0, 1, 2, 3}, 8 + 8 * which, 1,
                      kMargin);
      case ChunkedRows::kExpanded:
        return Tensor(c.dtype, c.sizes.batch, heads, seq, dim, {1, 2, 0, 3}, 8, 1, kMargin);
    }
    if (!c.strided) return Tensor(c.dtype, c.sizes.batch, heads, seq, dim);
    if (which == 0) return Tensor(c.dtype, c.sizes.batch, heads, seq, dim, {0, 2, 1, 3}, 5);
    if (which == 1) return Tensor(c.dtype, c.sizes.batch, heads, seq, dim, {1, 0, 3, 2}, 3);
    return Tensor(c.dtype, c.sizes.batch, heads, seq, dim, {2, 0, 1, 3}, 1, 2);
  }

  explicit Call(const Case& c)
      : q(make(c, c.sizes.heads_q, c.sizes.seq_q, c.sizes.dim_qk, 0)),
        k(make(c, c.sizes.heads_kv, c.sizes.seq_k, c.sizes.dim_qk, 1)),
        v(make(c, c.sizes.heads_kv, c.sizes.seq_k, c.sizes.dim_v, 2)),
        grad(make(c, c.sizes.heads_q, c.sizes.seq_q, c.sizes.dim_v, 1)),
        out(make(c, c.sizes.heads_q, c.sizes.seq_q, c.sizes.dim_v, 0)),
        dq(make(c, c.sizes.heads_q, c.sizes.seq_q, c.sizes.dim_qk, 2)),
        dk(make(c, c.sizes.heads_kv, c.sizes.seq_k, c.sizes.dim_qk, 0)),
        dv(make(c, c.sizes.heads_kv, c.sizes.seq_k, c.sizes.dim_v, 1)),
        is_double(c.dtype == DType::kFloat64) {
    if (c.rows == ChunkedRows::kExpanded) {
      q = q.expanded(0);
      k = k.expanded(1);
      v = v.expanded(0);
    }
    std::mt19937 random(static_cast<unsigned>(std::hash<std::string>{}(c.name)));
    q.fill_normal(random, c.sigma);
    k.fill_normal(random, c.sigma);
    v.fill_normal(random);
    grad.fill_normal(random);
    const core::Sizes& s = c.sizes;
    std::uniform_real_distribution<double> uniform;
    switch (c.mask) {
      case MaskKind::kNone:
        break;
      case MaskKind::kBool:
        mask.emplace(DType::kBool, s.batch, 1, s.seq_q, s.seq_k);
        mask->fill([&](auto, auto, auto i, auto) { return i % 5 != 3 && uniform(random) < 0.6; });
        break;
      case MaskKind::kBoolBytes:  // transposed, per head, and True as any byte but 0
        mask.emplace(DType::kBool, s.batch, s.heads_q, s.seq_q, s.seq_k,
                     std::vector<int>{1, 0, 3, 2}, 3);
        mask->fill([&](auto, auto, auto i, auto j) {
          return i % 5 == 3 || uniform(random) < 0.4 ? 0 : 1 << (i + j) % 8;
        });
        break;
      case MaskKind::kBoolBlocks:  // whole tiles hidden, whole tiles seen; every byte but 0 is True
        mask.emplace(DType::kBool, 1, 1, s.seq_q, s.seq_k, std::vector<int>{0, 1, 2, 3}, 7);
        mask->fill(
            [&](auto, auto, auto i, auto j) { return i / 60 == j / 130 ? 1 << (i + j) % 8 : 0; });
        break;
      case MaskKind::kBoolPerKey:
        mask.emplace(DType::kBool, s.batch, 1, 1, s.seq_k);
        mask->fill([&](auto, auto, auto, auto j) { return j % 7 != 2; });
        break;
      case MaskKind::kFloat:
      case MaskKind::kFloatWithHidden:
        mask.emplace(c.mask_dtype, 1, s.heads_q, s.seq_q, s.seq_k, std::vector<int>{1, 0, 3, 2}, 2);
        mask->fill([&](auto, auto, auto i, auto) {
          const bool hide =
              c.mask == MaskKind::kFloatWithHidden && (i % 6 == 1 || uniform(random) < 0.3);
          return hide ? -kInf : 2 * uniform(random);
        });
        break;
    }
    core::Problem problem;
    problem.sizes = s;
    problem.dtype = c.dtype;
    problem.scale = 1 / std::sqrt(static_cast<double>(s.dim_qk));
    problem.band = core::make_band(c.causal, c.offset, c.left, c.right, s.seq_q, s.seq_k);
    if (mask) problem.mask = mask->mask();
    problem.query = q.view();
    problem.key = k.view();
    problem.value = v.view();
    const auto rows = static_cast<std::size_t>(s.batch * s.heads_q * s.seq_q);
    lse.assign(rows * (is_double ? 8 : 4), 0xFF);
    if (c.grad_lse) {
      for (std::size_t n = 0; n < rows; ++n) {
        grad_lse_float.push_back(static_cast<float>(uniform(random) - 0.5));
        grad_lse.push_back(grad_lse_float.back());
      }
    }
    forward = {problem, out.output(), lse.data()};
    backward.problem = problem;
    backward.output = out.view();
    backward.grad_output = grad.view();
    backward.logsumexp = lse.data();
    if (c.grad_lse) {
      backward.grad_logsumexp =
          is_double ? static_cast<const void*>(grad_lse.data()) : grad_lse_float.data();
    }
    backward.grad_query = dq.output();
    backward.grad_key = dk.output();
    backward.grad_value = dv.output();
  }

  void run() {
    cpu::forward(forward);
    cpu::backward(backward);
  }
  Expected expected() const {
    return attend(q, k, v, grad, grad_lse, mask ? &*mask : nullptr, forward.problem.band,
                  forward.problem.scale);
  }
  double lse_at(std::size_t n) const {
    if (is_double) return reinterpret_cast<const double*>(lse.data())[n];
    return reinterpret_cast<const float*>(lse.data())[n];
  }
};

}  // namespace fused_attention::test
