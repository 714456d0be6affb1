#include "attention_formula.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "../attention_check.h"

namespace fused_attention::formula {
namespace {

using at::Tensor;
using c10::SymInt;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_one(const SymInt& size) { return TORCH_GUARD_OR_FALSE(size.sym_eq(1)); }

Tensor matmul_transposed(const Tensor& a, const Tensor& b) {
  return at::matmul(a, b.transpose(-2, -1));
}

Tensor transposed_matmul(const Tensor& a, const Tensor& b) {
  return at::matmul(a.transpose(-2, -1), b);
}

Tensor row_sum(const Tensor& a) { return a.sum(-1, /*keepdim=*/true); }

/// One call in grouped layout and wide precision: rows are (B, Hkv, Hq/Hkv, Sq, *), keys
/// (B or 1, Hkv, 1, Sk, *), score-like tensors (B, Hkv, Hq/Hkv, Sq, Sk).
class Call {
 public:
  Call(const Tensor& query, const Tensor& key, const Tensor& value,
       const std::optional<Tensor>& attn_mask, const CallOptions& options)
      : heads_q_(query.sym_size(1)),
        heads_kv_(key.sym_size(1)),
        dtype_(query.scalar_type()),
        wide_(accumulation_type(dtype_)) {
    scale_ = options.scale.value_or(
        1.0 / std::sqrt(static_cast<double>(query.sym_size(3).guard_int(__FILE__, __LINE__))));
    see_band(query.sym_size(2), key.sym_size(2), query.options(), options);
    if (attn_mask.has_value()) {
      see_mask(*attn_mask);
    }
    query_ = rows(query);
    key_ = keys(key);
    value_ = keys(value);
  }

  /// Makes a row (a key) operand. Once something is hidden, entries that are not finite are set to
  /// 0, so that they cannot leak through 0 * NaN; `probabilities` puts NaN where they are visible.
  Tensor rows(const Tensor& tensor) { return clean(split_heads(tensor.to(wide_)), bad_rows_); }

  Tensor keys(const Tensor& tensor) { return clean(tensor.to(wide_).unsqueeze(2), bad_keys_); }

  /// One number per row, (B, Hq, Sq), as a column.
  Tensor column(const Tensor& tensor) { return rows(tensor.unsqueeze(-1)); }

  /// softmax(scale * query key^T + bias), 0 where hidden. Ask after all operands are made.
  Tensor probabilities() const {
    Tensor scores = matmul_transposed(query_, key_) * scale_;
    if (bias_.defined()) {
      scores = scores + bias_;
    }
    if (!visible_.defined()) {
      return at::softmax(scores, -1);
    }
    const Tensor bad = bad_rows_.logical_or(bad_keys_.transpose(-2, -1));
    const Tensor hidden = visible_.logical_not();
    scores = scores.masked_fill(bad, std::numeric_limits<double>::quiet_NaN())
                 .masked_fill(hidden, -kInfinity)
                 .masked_fill(visible_.any(-1, /*keepdim=*/true).logical_not(), 0.0);
    return at::softmax(scores, -1).masked_fill(hidden, 0.0);
  }

  Tensor from_rows(const Tensor& rows) const { return merge_heads(rows).to(dtype_); }

  /// Sums over the query heads of a group, and over the batch where the operand was broadcast.
  Tensor from_keys(const Tensor& keys, const Tensor& like) const {
    Tensor sum = keys.sum(2);
    if (is_one(like.sym_size(0))) {
      sum = sum.sum(0, /*keepdim=*/true);
    }
    return sum.to(dtype_);
  }

  Tensor from_column(const Tensor& column) const { return merge_heads(column).squeeze(-1); }

  const Tensor& query() const { return query_; }
  const Tensor& key() const { return key_; }
  const Tensor& value() const { return value_; }
  double scale() const { return scale_; }

 private:
  SymInt group() const {
    return TORCH_GUARD_OR_FALSE(heads_kv_.sym_eq(0)) ? SymInt(1) : heads_q_ / heads_kv_;
  }

  /// (B, Hq, ...) as (B, Hkv, Hq/Hkv, ...). By reshape, which every vmap knows.
  Tensor split_heads(const Tensor& tensor) const {
    const auto sizes = tensor.sym_sizes();
    return tensor.reshape_symint({sizes[0], heads_kv_, group(), sizes[2], sizes[3]});
  }

  Tensor merge_heads(const Tensor& tensor) const {
    const auto sizes = tensor.sym_sizes();
    return tensor.reshape_symint({sizes[0], heads_q_, sizes[3], sizes[4]});
  }

  Tensor clean(const Tensor& tensor, Tensor& bad) const {
    if (!visible_.defined()) {
      return tensor;
    }
    const Tensor is_bad = at::isfinite(tensor).logical_not();
    const Tensor any_bad = is_bad.any(-1, /*keepdim=*/true);
    bad = bad.defined() ? bad.logical_or(any_bad) : any_bad;
    return tensor.masked_fill(is_bad, 0.0);
  }

  void hide(const Tensor& visible) {
    visible_ = visible_.defined() ? visible_.logical_and(visible) : visible;
  }

  void see_band(const SymInt& seq_q, const SymInt& seq_k, const at::TensorOptions& tensor_options,
                const CallOptions& options) {
    const auto [left, right] = options.window_size;
    if (left < 0 && right < 0 && !options.is_causal) {
      return;
    }
    const auto integers = tensor_options.dtype(at::kLong);
    const Tensor distance = at::arange(seq_k, integers) - at::arange(seq_q, integers).unsqueeze(-1);
    // Sums saturate far beyond any length: what lies there is all or nothing anyway.
    static constexpr std::int64_t kFar = std::int64_t{1} << 62;
    const auto known = options.diagonal_offset.maybe_as_int();
    const auto diagonal_plus = [&](std::int64_t shift) -> SymInt {
      if (!known.has_value()) {
        return options.diagonal_offset + std::clamp(shift, -kFar, kFar);
      }
      std::int64_t sum = 0;
      const bool overflows = __builtin_add_overflow(*known, shift, &sum);
      return overflows ? (shift > 0 ? kFar : -kFar) : std::clamp(sum, -kFar, kFar);
    };
    if (left >= 0) {
      hide(distance.ge(diagonal_plus(-left)));
    }
    if (right >= 0) {
      hide(distance.le(diagonal_plus(right)));
    }
    if (options.is_causal) {
      hide(distance.le(diagonal_plus(0)));
    }
  }

  void see_mask(const Tensor& attn_mask) {
    Tensor mask = attn_mask;
    while (mask.dim() < 4) {
      mask = mask.unsqueeze(0);
    }
    mask = is_one(mask.sym_size(1)) ? mask.unsqueeze(2) : split_heads(mask);
    if (mask.scalar_type() == at::kBool) {
      hide(mask);
      return;
    }
    const Tensor hidden = mask.eq(-kInfinity);
    hide(hidden.logical_not());
    if (wide_ == at::kFloat && mask.scalar_type() == at::kDouble) {
      // Finite stays finite.
      constexpr double kMax = std::numeric_limits<float>::max();
      mask = at::where(at::isfinite(mask), mask.clamp(-kMax, kMax), mask);
    }
    bias_ = mask.masked_fill(hidden, 0.0).to(wide_);
  }

  SymInt heads_q_;
  SymInt heads_kv_;
  c10::ScalarType dtype_;
  c10::ScalarType wide_;
  double scale_ = 1.0;
  Tensor visible_;  // undefined: everything
  Tensor bias_;     // undefined: none
  Tensor bad_rows_;
  Tensor bad_keys_;
  Tensor query_;
  Tensor key_;
  Tensor value_;
};

Tensor or_zeros(const Tensor& tensor, const Tensor& like) {
  return tensor.defined() ? tensor : at::zeros_like(like);
}

/// The gradient of a logsumexp of `query`'s rows, zeros when undefined.
Tensor or_zero_rows(const Tensor& tensor, const Tensor& query) {
  return tensor.defined()
             ? tensor
             : at::zeros_symint(query.sym_sizes().slice(0, 3),
                                query.options().dtype(accumulation_type(query.scalar_type())));
}

}  // namespace

// With S the scores, P = softmax(S), O = P V, L = logsumexp(S):
//   dS = scale (dQ K^T + Q dK^T), dL = rowsum(P dS), dP = P (dS - dL), dO = dP V + P dV.
std::tuple<Tensor, Tensor> forward_tangents(const ForwardTensors& primal,
                                            const std::array<Tensor, 3>& tangents,
                                            const CallOptions& options) {
  Call call(primal.query, primal.key, primal.value, primal.attn_mask, options);
  const Tensor dquery = call.rows(or_zeros(tangents[0], primal.query));
  const Tensor dkey = call.keys(or_zeros(tangents[1], primal.key));
  const Tensor dvalue = call.keys(or_zeros(tangents[2], primal.value));
  const Tensor p = call.probabilities();
  const Tensor dscores =
      (matmul_transposed(dquery, call.key()) + matmul_transposed(call.query(), dkey)) *
      call.scale();
  const Tensor dlogsumexp = row_sum(p * dscores);
  const Tensor dp = p * (dscores - dlogsumexp);
  return {call.from_rows(at::matmul(dp, call.value()) + at::matmul(p, dvalue)),
          call.from_column(dlogsumexp)};
}

// attention_backward computes, from gO and gL:
//   gP = gO V^T, M = gP - rowsum(P gP) + gL, gS = P M,
//   gQ = scale gS K, gK = scale gS^T Q, gV = P^T gO.
// Its tangents follow by the product rule.
std::array<Tensor, 3> backward_tangents(const BackwardInputs& primal,
                                        const BackwardInputs& tangents,
                                        const std::optional<Tensor>& attn_mask,
                                        const CallOptions& options) {
  const auto& [grad_output, grad_logsumexp, query, key, value] = primal;
  Call call(query, key, value, attn_mask, options);
  const Tensor g = call.rows(grad_output);
  const Tensor gl = call.column(or_zero_rows(grad_logsumexp, query));
  const Tensor dg = call.rows(or_zeros(tangents[0], grad_output));
  const Tensor dgl = call.column(or_zero_rows(tangents[1], query));
  const Tensor dquery = call.rows(or_zeros(tangents[2], query));
  const Tensor dkey = call.keys(or_zeros(tangents[3], key));
  const Tensor dvalue = call.keys(or_zeros(tangents[4], value));
  const Tensor p = call.probabilities();

  const Tensor dscores =
      (matmul_transposed(dquery, call.key()) + matmul_transposed(call.query(), dkey)) *
      call.scale();
  const Tensor dp = p * (dscores - row_sum(p * dscores));
  const Tensor gp = matmul_transposed(g, call.value());
  const Tensor dgp = matmul_transposed(dg, call.value()) + matmul_transposed(g, dvalue);
  const Tensor m = gp - row_sum(p * gp) + gl;
  const Tensor dm = dgp - row_sum(dp * gp + p * dgp) + dgl;
  const Tensor gs = p * m * call.scale();
  const Tensor dgs = (dp * m + p * dm) * call.scale();
  return {call.from_rows(at::matmul(dgs, call.key()) + at::matmul(gs, dkey)),
          call.from_keys(transposed_matmul(dgs, call.query()) + transposed_matmul(gs, dquery), key),
          call.from_keys(transposed_matmul(dp, g) + transposed_matmul(p, dg), value)};
}

// With a, b, c the gradients of gQ, gK, gV, the number to differentiate is
//   sum(W gS) + sum(P (gO c^T)), W = scale (a K^T + Q b^T), so with w = rowsum(P W):
//   to gP: R = P (W - w), to gL: w, to P: G = W M - w gP + gO c^T, to S: T = P (G - rowsum(P G)).
BackwardInputs backward_gradients(const BackwardInputs& primal,
                                  const std::array<Tensor, 3>& gradients,
                                  const std::optional<Tensor>& attn_mask,
                                  const CallOptions& options) {
  const auto& [grad_output, grad_logsumexp, query, key, value] = primal;
  Call call(query, key, value, attn_mask, options);
  const Tensor g = call.rows(grad_output);
  const Tensor gl = call.column(or_zero_rows(grad_logsumexp, query));
  const Tensor a = call.rows(or_zeros(gradients[0], query));
  const Tensor b = call.keys(or_zeros(gradients[1], key));
  const Tensor c = call.keys(or_zeros(gradients[2], value));
  const Tensor p = call.probabilities();

  const Tensor gp = matmul_transposed(g, call.value());
  const Tensor m = gp - row_sum(p * gp) + gl;
  const Tensor gs = p * m * call.scale();
  const Tensor weights =
      (matmul_transposed(a, call.key()) + matmul_transposed(call.query(), b)) * call.scale();
  const Tensor mean = row_sum(p * weights);
  const Tensor r = p * (weights - mean);
  const Tensor to_p = weights * m - mean * gp + matmul_transposed(g, c);
  const Tensor t = p * (to_p - row_sum(p * to_p)) * call.scale();
  return {call.from_rows(at::matmul(r, call.value()) + at::matmul(p, c)), call.from_column(mean),
          call.from_rows(at::matmul(t, call.key()) + at::matmul(gs, b)),
          call.from_keys(transposed_matmul(t, call.query()) + transposed_matmul(gs, a), key),
          call.from_keys(transposed_matmul(r, g), value)};
}

}  // namespace fused_attention::formula
