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
#include "panel_io.h"
#include "products.h"
#include "score.h"
#include "softmax.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

template <class C>
struct BackwardPanel {
  using T = typename C::Scalar;
  using E = typename C::Element;
  PanelRows<C>* rows;
  E* queries_by_dim;  // [D][rows], scaled: as in the forward pass; few rows: [rows][D]
  E* queries;         // [rows][D padded], scaled; zeros for a row that is not finite
  E* grads_by_dim;    // dO as [Dv][rows]; few rows: [rows][Dv]
  E* grads;           // dO as [rows][Dv padded]; zeros for a row that is not finite
  T* grad_queries;    // [D rounded up][rows]; few rows: [rows][D] until the last key
  T* shift;           // m; +inf for rows that see nothing, so that their weights are 0
  T* factor;          // r
  T* delta;
  int* non_finite;  // [0] = count, then lanes whose dO is not finite
};

template <class C>
struct BackwardScratch {
  using T = typename C::Scalar;
  using E = typename C::Element;
  static constexpr int M = C::kBroadcast;
  static constexpr int kDepth = ElementTraits<E>::kDepth;

  BackwardScratch(const core::Sizes& sizes, std::int64_t block_rows, void* base) : arena(base) {
    const std::int64_t longest = core::max64(sizes.dim_qk, sizes.dim_v);
    keys.by_key = arena.take<E>(tile_size<C>(by_key_size<E>(sizes.dim_qk), sizes.dim_qk));
    keys.by_dim = arena.take<E>(tile_size<C>(by_dim_size<E, M>(sizes.dim_qk), sizes.dim_qk));
    values.by_key = arena.take<E>(tile_size<C>(by_key_size<E>(sizes.dim_v), sizes.dim_v));
    rows = arena.take<T>((core::max64(C::kRows, M) + kDepth - 1) * padded_length<T>(longest));
    weights = arena.take<T>(kTileKeys * C::kRows);
    grad_scores = arena.take<T>(kTileKeys * C::kRows);
    if constexpr (C::kPaired) {
      weight_rows = arena.take<E>(kTileKeys * C::kRows / kDepth);
      grad_score_rows = arena.take<E>(kTileKeys * C::kRows / kDepth);
    } else {
      weight_rows = weights;
      grad_score_rows = grad_scores;
    }
    mask = arena.take<T>(kMaskBuffer<C>);
    max = arena.take<T>(C::kRows);
    sum = arena.take<T>(C::kRows);
    alpha = arena.take<T>(C::kRows);
    panels_begin = arena.bytes();
    take_panel<C>(sizes);
    panel_bytes = arena.bytes() - panels_begin;
    bytes = panels_begin + panel_bytes * (block_rows / C::kRows);
  }

  template <class P>
  BackwardPanel<P> take_panel(const core::Sizes& sizes) {
    BackwardPanel<P> panel;
    panel.rows = arena.take<PanelRows<P>>(1);
    panel.queries_by_dim = arena.take<E>(steps_of<E>(round_up(sizes.dim_qk, M)) * P::kRows);
    panel.queries = arena.take<E>(padded_length<T>(sizes.dim_qk) * P::kRows / kDepth);
    panel.grads_by_dim = arena.take<E>(steps_of<E>(round_up(sizes.dim_v, M)) * P::kRows);
    panel.grads = arena.take<E>(padded_length<T>(sizes.dim_v) * P::kRows / kDepth);
    panel.grad_queries = arena.take<T>(round_up(sizes.dim_qk, M) * P::kRows);
    panel.shift = arena.take<T>(P::kRows);
    panel.factor = arena.take<T>(P::kRows);
    panel.delta = arena.take<T>(P::kRows);
    panel.non_finite = arena.take<int>(P::kRows + 1);
    return panel;
  }

  /// Panel `index`, of C or its tail.
  template <class P>
  BackwardPanel<P> panel(const core::Sizes& sizes, std::int64_t index) {
    arena.rewind(panels_begin + index * panel_bytes);
    return take_panel<P>(sizes);
  }

  Arena arena;
  PackedTile<E> keys;
  PackedTile<E> values;
  T* rows;
  T* weights;          // keys x rows; where operands are pairs, only the scores
  T* grad_scores;      // keys x rows; then, of pairs, keys j and j + 1 in row j / 2
  E* weight_rows;      // as operands with the rows summed over: pairs of rows, else `weights`
  E* grad_score_rows;  // and `grad_scores`
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
  return sum_lanes<T>(sums) + sum;
}

/// m, r and delta of a lane but for rowsum(dO * O); false for a row that sees nothing, or is none:
/// nothing of it may count, NaN included.
template <class C>
FUSED_ATTENTION_INLINE bool start_row(const core::BackwardProblem& call, int lane,
                                      const BackwardPanel<C>& panel) {
  using T = typename C::Scalar;
  const core::Sizes& sizes = call.problem.sizes;
  const PanelRows<C>& rows = *panel.rows;
  panel.shift[lane] = kInfinity<T>;
  panel.factor[lane] = 0;
  panel.delta[lane] = 0;
  if (lane >= rows.count) return false;
  const std::int64_t head = rows.batch * sizes.heads_q + rows.head[lane];
  const std::int64_t at = head * sizes.seq_q + rows.position[lane];
  const T lse = static_cast<const T*>(call.logsumexp)[at];
  if (lse == -kInfinity<T>) return false;
  panel.shift[lane] = lse;
  panel.factor[lane] = 1;
  if (call.grad_logsumexp != nullptr) {
    panel.delta[lane] = -static_cast<const T*>(call.grad_logsumexp)[at];
  }
  return true;
}

/// Fills a panel: queries and grad_output in both orders, m, r, delta.
template <class C>
void fill_panel(const core::BackwardProblem& call, TileForm form, typename C::Scalar* buffer,
                const BackwardPanel<C>& panel) {
  using T = typename C::Scalar;
  const core::Problem& problem = call.problem;
  const core::Sizes& sizes = problem.sizes;
  const int dim_qk = static_cast<int>(sizes.dim_qk);
  const int dim_v = static_cast<int>(sizes.dim_v);
  const std::int64_t ld_qk = padded_length<T>(dim_qk);
  const std::int64_t ld_v = padded_length<T>(dim_v);
  const PanelRows<C>& rows = *panel.rows;
  FiniteCheck<T> query_check;
  FiniteCheck<T> grad_check;
  for (int lane = 0; lane < C::kRows; ++lane) {
    T* query = panel.queries + lane * ld_qk;
    T* grad = panel.grads + lane * ld_v;
    if (!start_row<C>(call, lane, panel)) {
      for (std::int64_t d = 0; d < ld_qk; ++d) query[d] = 0;
      for (std::int64_t d = 0; d < ld_v; ++d) grad[d] = 0;
      continue;
    }
    const auto read = [&](const core::ConstOperand& x, int dim) {
      return read_row(problem.dtype, x.data, row_offset<C>(x, rows, lane), x.stride_d, dim, buffer);
    };
    copy_padded(read(problem.query, dim_qk), dim_qk, static_cast<T>(problem.scale), ld_qk, query);
    copy_padded(read(call.grad_output, dim_v), dim_v, T(1), ld_v, grad);
    panel.delta[lane] += dot(grad, read(call.output, dim_v), dim_v);
    query_check.add(query, dim_qk);
    grad_check.add(grad, dim_v);
  }
  const auto transpose_rows = [&](int dim, const T* from, T* to) {
    const std::int64_t ld = padded_length<T>(dim);
    if (form == TileForm::kFewRows) {
      for (int r = 0; r < rows.count; ++r) {
        __builtin_memcpy(to + r * vector_length<T>(dim), from + r * ld,
                         sizeof(T) * static_cast<std::size_t>(vector_length<T>(dim)));
      }
      return;
    }
    transpose<T>(
        C::kRows, dim, [&](int lane) FUSED_ATTENTION_LAMBDA { return from + lane * ld; },
        Unchanged{}, [&](int d) FUSED_ATTENTION_LAMBDA { return to + d * C::kRows; });
  };
  transpose_rows(dim_qk, panel.queries, panel.queries_by_dim);
  transpose_rows(dim_v, panel.grads, panel.grads_by_dim);
  // From here on the row-major copies are multiplied with weights that may be 0.
  panel.non_finite[0] = 0;
  for (int lane = 0; lane < rows.count && !query_check.all_finite(); ++lane) {
    T* query = panel.queries + lane * ld_qk;
    if (all_finite(query, dim_qk)) continue;
    for (int d = 0; d < dim_qk; ++d) query[d] = 0;
  }
  for (int lane = 0; lane < rows.count && !grad_check.all_finite(); ++lane) {
    T* grad = panel.grads + lane * ld_v;
    if (all_finite(grad, dim_v)) continue;
    for (int d = 0; d < dim_v; ++d) grad[d] = 0;
    panel.non_finite[++panel.non_finite[0]] = lane;
  }
}

/// Fills a panel, and makes its dQ 0.
template <class C>
void prepare_panel(const core::BackwardProblem& call, const core::RowBlock& block,
                   std::int64_t offset, TileForm form, typename C::Scalar* buffer,
                   const BackwardPanel<C>& panel) {
  using T = typename C::Scalar;
  const core::Sizes& sizes = call.problem.sizes;
  place_rows<C>(sizes, block, offset, *panel.rows);
  if constexpr (C::kPaired) {
    fill_pair_panel<C>(call, buffer, panel);
  } else {
    fill_panel<C>(call, form, buffer, panel);
  }
  __builtin_memset(
      panel.grad_queries, 0,
      sizeof(T) * static_cast<std::size_t>(round_up(sizes.dim_qk, C::kBroadcast) * C::kRows));
}

/// Finds m and l anew for the rows of a panel whose LSE is too coarse; a rare pass over its keys.
template <class C, class Scratch>
void refine_shifts(const core::Problem& problem, const core::RowBlock& block, TileForm form,
                   Scratch& scratch, const BackwardPanel<C>& panel) {
  using T = typename C::Scalar;
  constexpr int M = C::kBroadcast;
  const core::Sizes& sizes = problem.sizes;
  bool coarse = false;
  for (int lane = 0; lane < C::kRows; ++lane) {
    coarse |= core::logsumexp_is_coarse(panel.shift[lane]);
    scratch.max[lane] = -kInfinity<T>;
    scratch.sum[lane] = 0;
  }
  if (!coarse) return;
  for (std::int64_t first = 0; first < sizes.seq_k; first += kTileKeys) {
    const int count = static_cast<int>(core::min64(kTileKeys, sizes.seq_k - first));
    const TileSpan span = span_of<C>(problem, *panel.rows, first, count);
    if (span.begin >= span.end) continue;
    const TileSource source = tile_source(problem, problem.key, sizes.dim_qk, block, first, count);
    const auto add_keys = [&](const auto& tile) {
      if (!score_tile<C>(problem, *panel.rows, first, span, tile, panel.queries_by_dim,
                         scratch.mask, scratch.weights)) {
        return;
      }
      softmax_tile<C>(span, scratch.weights, scratch.max, scratch.sum, scratch.alpha);
    };
    if constexpr (C::kPaired) {
      using E = typename C::Element;
      pack_tile<M>(source, scratch.rows, PackedTile<E>{.by_key = scratch.keys.by_key}, nullptr);
      add_keys(factors_by_key<E, M>(scratch.keys, source.dim));
    } else {
      const RowAccess access = row_access<C>(block.count);
      if (form != TileForm::kFewRows) {
        add_keys(factors_by_key<T, M>(read_rows(source, access, scratch.keys.by_key)));
      } else if constexpr (C::kVectors == 1) {
        add_keys(stored_rows(source, access, scratch.keys.by_key));
      }
    }
  }
  for (int lane = 0; lane < panel.rows->count; ++lane) {
    if (!core::logsumexp_is_coarse(panel.shift[lane])) continue;
    panel.shift[lane] = scratch.max[lane];
    panel.factor[lane] = core::output_scale(scratch.sum[lane]);
  }
}

/// Writes scale * dQ of a finished panel.
template <class C>
void write_grad_queries(const core::BackwardProblem& call, const BackwardPanel<C>& panel,
                        typename C::Scalar* buffer) {
  using T = typename C::Scalar;
  const core::Problem& problem = call.problem;
  store_panel<C>(
      problem.dtype, call.grad_query, *panel.rows, static_cast<int>(problem.sizes.dim_qk),
      [&](int) { return static_cast<T>(problem.scale); }, panel.grad_queries, buffer);
}

FUSED_ATTENTION_END_ISA_NAMESPACE

#if defined(FUSED_ATTENTION_ISA_AVX512_BF16)
#include "backward_pair_panel.h"
#endif
