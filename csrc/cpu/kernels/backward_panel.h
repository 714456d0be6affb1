// What the backward pass keeps of a panel of query rows, and how it is prepared.
//
// With P = exp(S - m) * r, where m = LSE and r = 1 (or m and 1/l of their own where LSE is too
// coarse to rebuild P from), and delta = rowsum(dO * O) - dLSE:
//   dV = P^T dO,  dP = dO V^T,  dS = P * (dP - delta),  dQ = scale * dS K,  dK = dS^T (scale * Q).
// FlashAttention-2 (Dao 2023), Algorithm 2.
#pragma once

#include <cstdint>

#include "../../core/online_softmax.h"
#include "pack.h"
#include "panel.h"
#include "score.h"
#include "softmax.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

template <class C>
struct BackwardPanel {
  using T = typename C::Scalar;
  PanelRows<C>* rows;
  T* queries_by_dim;  // [D][rows], scaled: as in the forward pass
  T* queries;         // [rows][D padded], scaled; zeros for a row that is not finite
  T* grads_by_dim;    // dO as [Dv][rows]
  T* grads;           // dO as [rows][Dv padded]; zeros for a row that is not finite
  T* grad_queries;    // [D rounded up][rows]
  T* shift;           // m; +inf for rows that see nothing, so that their weights are 0
  T* factor;          // r
  T* delta;
  int* non_finite;  // [0] = count, then lanes whose dO is not finite
};

template <class C>
struct BackwardScratch {
  using T = typename C::Scalar;
  static constexpr int M = C::kBroadcast;

  BackwardScratch(const core::Sizes& sizes, std::int64_t block_rows, void* base) : arena(base) {
    const std::int64_t longest = core::max64(sizes.dim_qk, sizes.dim_v);
    keys.by_key = arena.take<T>(packed_size<T, M>(sizes.dim_qk));
    keys.by_dim = arena.take<T>(packed_size<T, M>(sizes.dim_qk));
    values.by_key = arena.take<T>(packed_size<T, M>(sizes.dim_v));
    rows = arena.take<T>(2 * core::max64(C::kRows, M) * padded_length<T>(longest));
    weights = arena.take<T>(kTileKeys * C::kRows);
    grad_scores = arena.take<T>(kTileKeys * C::kRows);
    mask = arena.take<T>(kMaskBuffer<C>);
    max = arena.take<T>(C::kRows);
    sum = arena.take<T>(C::kRows);
    alpha = arena.take<T>(C::kRows);
    panels_begin = arena.bytes();
    take_panel(sizes);
    panel_bytes = arena.bytes() - panels_begin;
    bytes = panels_begin + panel_bytes * (block_rows / C::kRows);
  }

  BackwardPanel<C> take_panel(const core::Sizes& sizes) {
    BackwardPanel<C> panel;
    panel.rows = arena.take<PanelRows<C>>(1);
    panel.queries_by_dim = arena.take<T>(sizes.dim_qk * C::kRows);
    panel.queries = arena.take<T>(padded_length<T>(sizes.dim_qk) * C::kRows);
    panel.grads_by_dim = arena.take<T>(sizes.dim_v * C::kRows);
    panel.grads = arena.take<T>(padded_length<T>(sizes.dim_v) * C::kRows);
    panel.grad_queries = arena.take<T>(round_up(sizes.dim_qk, M) * C::kRows);
    panel.shift = arena.take<T>(C::kRows);
    panel.factor = arena.take<T>(C::kRows);
    panel.delta = arena.take<T>(C::kRows);
    panel.non_finite = arena.take<int>(C::kRows + 1);
    return panel;
  }

  BackwardPanel<C> panel(const core::Sizes& sizes, std::int64_t index) {
    arena.rewind(panels_begin + index * panel_bytes);
    return take_panel(sizes);
  }

  Arena arena;
  PackedTile<T> keys;
  PackedTile<T> values;
  T* rows;
  T* weights;
  T* grad_scores;
  T* mask;
  T* max;
  T* sum;
  T* alpha;
  std::int64_t panels_begin;
  std::int64_t panel_bytes;
  std::int64_t bytes;
};

template <class T>
FUSED_ATTENTION_INLINE T dot(const T* a, const T* b, int n) {
  constexpr int L = kLanes<T>;
  Vec<T> sums{};
  int i = 0;
  for (; i + L <= n; i += L) sums += load(a + i) * load(b + i);
  T sum = 0;
  for (; i < n; ++i) sum += a[i] * b[i];
  for (int lane = 0; lane < L; ++lane) sum += sums[lane];
  return sum;
}

/// Row of an operand, converted, zeros up to the padded length.
template <class T, class Operand>
FUSED_ATTENTION_INLINE void load_padded(core::DType dtype, const Operand& x, std::int64_t b,
                                        std::int64_t h, std::int64_t i, int dim, T* to) {
  load_row(dtype, x.data, b * x.stride_b + h * x.stride_h + i * x.stride_s, x.stride_d, dim, to);
  for (std::int64_t d = dim; d < padded_length<T>(dim); ++d) to[d] = 0;
}

/// Fills a panel: queries and grad_output in both orders, m, r, delta, dQ = 0.
template <class C>
void prepare_panel(const core::BackwardProblem& call, const core::RowBlock& block,
                   std::int64_t offset, typename C::Scalar* buffer, const BackwardPanel<C>& panel) {
  using T = typename C::Scalar;
  const core::Problem& problem = call.problem;
  const core::Sizes& sizes = problem.sizes;
  const int dim_qk = static_cast<int>(sizes.dim_qk);
  const int dim_v = static_cast<int>(sizes.dim_v);
  const std::int64_t ld_qk = padded_length<T>(dim_qk);
  const std::int64_t ld_v = padded_length<T>(dim_v);
  PanelRows<C>& rows = *panel.rows;
  place_rows<C>(sizes, block, offset, rows);
  panel.non_finite[0] = 0;
  for (int lane = 0; lane < C::kRows; ++lane) {
    T* query = panel.queries + lane * ld_qk;
    T* grad = panel.grads + lane * ld_v;
    panel.shift[lane] = kInfinity<T>;
    panel.factor[lane] = 0;
    panel.delta[lane] = 0;
    const bool row = lane < rows.count;
    const std::int64_t b = rows.batch;
    const std::int64_t h = rows.head[lane];
    const std::int64_t i = rows.position[lane];
    const std::int64_t at = (b * sizes.heads_q + h) * sizes.seq_q + i;
    const T lse = row ? static_cast<const T*>(call.logsumexp)[at] : -kInfinity<T>;
    if (lse ==
        -kInfinity<T>) {  // sees nothing, or is no row: nothing of it may count, NaN included
      for (std::int64_t d = 0; d < ld_qk; ++d) query[d] = 0;
      for (std::int64_t d = 0; d < ld_v; ++d) grad[d] = 0;
      continue;
    }
    panel.shift[lane] = lse;
    panel.factor[lane] = 1;
    load_padded(problem.dtype, problem.query, b, h, i, dim_qk, query);
    for (int d = 0; d < dim_qk; ++d) query[d] *= static_cast<T>(problem.scale);
    load_padded(problem.dtype, call.grad_output, b, h, i, dim_v, grad);
    load_padded(problem.dtype, call.output, b, h, i, dim_v, buffer);
    panel.delta[lane] = dot(grad, buffer, dim_v);
    if (call.grad_logsumexp != nullptr) {
      panel.delta[lane] -= static_cast<const T*>(call.grad_logsumexp)[at];
    }
  }
  transpose(C::kRows, dim_qk, panel.queries, ld_qk, panel.queries_by_dim, C::kRows);
  transpose(C::kRows, dim_v, panel.grads, ld_v, panel.grads_by_dim, C::kRows);
  // From here on the row-major copies are multiplied with weights that may be 0.
  for (int lane = 0; lane < rows.count; ++lane) {
    T* query = panel.queries + lane * ld_qk;
    T* grad = panel.grads + lane * ld_v;
    if (!all_finite(query, dim_qk)) {
      for (int d = 0; d < dim_qk; ++d) query[d] = 0;
    }
    if (!all_finite(grad, dim_v)) {
      for (int d = 0; d < dim_v; ++d) grad[d] = 0;
      panel.non_finite[++panel.non_finite[0]] = lane;
    }
  }
  __builtin_memset(
      panel.grad_queries, 0,
      sizeof(T) * static_cast<std::size_t>(round_up(dim_qk, C::kBroadcast) * C::kRows));
}

/// Finds m and l anew for the rows whose LSE is too coarse; a rare pass over the block's keys.
template <class C>
void refine_shifts(const core::Problem& problem, const core::RowBlock& block, std::int64_t panels,
                   BackwardScratch<C>& scratch) {
  using T = typename C::Scalar;
  const core::Sizes& sizes = problem.sizes;
  for (std::int64_t p = 0; p < panels; ++p) {
    const BackwardPanel<C> panel = scratch.panel(sizes, p);
    bool coarse = false;
    for (int lane = 0; lane < panel.rows->count; ++lane) {
      coarse |= core::logsumexp_is_coarse(panel.shift[lane]);
      scratch.max[lane] = -kInfinity<T>;
      scratch.sum[lane] = 0;
    }
    if (!coarse) continue;
    for (int lane = panel.rows->count; lane < C::kRows; ++lane) {
      scratch.max[lane] = -kInfinity<T>;
      scratch.sum[lane] = 0;
    }
    for (std::int64_t first = 0; first < sizes.seq_k; first += kTileKeys) {
      const int count = static_cast<int>(core::min64(kTileKeys, sizes.seq_k - first));
      const TileSpan span = span_of<C>(problem, *panel.rows, first, count, true);
      if (span.begin >= span.end) continue;
      pack_tile<T, C::kBroadcast>(problem.dtype, problem.key, block.batch, block.head_kv, first,
                                  count, static_cast<int>(sizes.dim_qk), scratch.rows,
                                  {scratch.keys.by_key, nullptr}, nullptr);
      if (!score_tile<C>(problem, *panel.rows, first, span,
                         factors_by_key<T, C::kBroadcast>(scratch.keys, sizes.dim_qk),
                         panel.queries_by_dim, scratch.mask, scratch.weights)) {
        continue;
      }
      softmax_tile<C>(span, scratch.weights, scratch.max, scratch.sum, scratch.alpha);
    }
    for (int lane = 0; lane < panel.rows->count; ++lane) {
      if (!core::logsumexp_is_coarse(panel.shift[lane])) continue;
      panel.shift[lane] = scratch.max[lane];
      panel.factor[lane] = static_cast<T>(core::output_scale(scratch.sum[lane]));
    }
  }
}

/// Writes scale * dQ of a finished panel.
template <class C>
void write_grad_queries(const core::BackwardProblem& call, const BackwardPanel<C>& panel,
                        typename C::Scalar* buffer) {
  using T = typename C::Scalar;
  const core::Problem& problem = call.problem;
  const int dim = static_cast<int>(problem.sizes.dim_qk);
  const std::int64_t ld = padded_length<T>(dim);
  const PanelRows<C>& rows = *panel.rows;
  const core::Operand& to = call.grad_query;
  transpose(dim, C::kRows, panel.grad_queries, C::kRows, buffer, ld);
  for (int lane = 0; lane < rows.count; ++lane) {
    T* row = buffer + lane * ld;
    for (int d = 0; d < dim; ++d) row[d] *= static_cast<T>(problem.scale);
    store_row(problem.dtype, to.data,
              rows.batch * to.stride_b + rows.head[lane] * to.stride_h +
                  rows.position[lane] * to.stride_s,
              to.stride_d, dim, row);
  }
}

FUSED_ATTENTION_END_ISA_NAMESPACE
