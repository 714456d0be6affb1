// Backward pass of one panel of query rows and one tile of keys: rebuild P, form dS, and add to dV,
// dK (accumulators of the tile, row-major) and dQ (of the panel).
#pragma once

#include <cstdint>

#include "backward_panel.h"
#include "gemm.h"
#include "products.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// Sums for dK as [keys][D padded] and dV as [keys][Dv padded], of all tiles of a (b, kv head)
/// pair; or of one at a time, where the rows are one block, which finishes a tile before the next.
template <class T>
struct KeyGradients {
  KeyGradients(const core::Sizes& sizes, std::int64_t row_blocks, void* base)
      : ld_key(padded_length<T>(sizes.dim_qk)), ld_value(padded_length<T>(sizes.dim_v)) {
    Arena arena(base);
    const std::int64_t keys = row_blocks > 1 ? round_up(sizes.seq_k, kTileKeys) : kTileKeys;
    key = arena.take<T>(keys * ld_key);
    value = arena.take<T>(keys * ld_value);
    tile_stride = row_blocks > 1 ? kTileKeys : 0;
    bytes = arena.bytes();
  }
  KeyGradients of_tile(std::int64_t tile) const {
    KeyGradients sums = *this;
    sums.key += tile * tile_stride * ld_key;
    sums.value += tile * tile_stride * ld_value;
    return sums;
  }
  std::int64_t ld_key;
  std::int64_t ld_value;
  std::int64_t tile_stride;  // in keys
  T* key;
  T* value;
  std::int64_t bytes;
};

/// Rows of weights of keys j, j + 1, ... as pairs of neighbouring rows: vector v of [key][rows].
template <class C, int N>
FUSED_ATTENTION_INLINE void store_pairs_of_rows(const Vec<typename C::Scalar> (&weight)[N], int j,
                                                int v, typename C::Element* to) {
  constexpr int kSteps = C::kRows / 2;
  to += j * kSteps + v * kLanes<typename C::Scalar> / 2;
#pragma GCC unroll 8
  for (int i = 0; i < N; i += 2, to += 2 * kSteps) {
    store_halves(narrow(weight[i], weight[i + 1]), to, to + kSteps);
  }
}

/// P and dS of a tile from scores and dP: in place, keys x rows; or as pairs, of keys in place, and
/// of rows beside (P only those). `some_hidden`: the tile may hold scores of -inf that stand for
/// hidden keys; their P and dS are 0 whatever else is NaN.
template <class C, bool some_hidden, class Scratch>
void weights_and_grad_scores(TileSpan span, const BackwardPanel<C>& panel, bool want_grad_scores,
                             Scratch& scratch) {
  using T = typename C::Scalar;
  constexpr int L = kLanes<T>;
  T* const weights = scratch.weights;
  T* const grad_scores = scratch.grad_scores;
  for (int v = 0; v < C::kVectors; ++v) {
    const Vec<T> shift = load(panel.shift + v * L);
    const Vec<T> factor = load(panel.factor + v * L);
    const Vec<T> delta = load(panel.delta + v * L);
    const auto weigh = [&](int first, auto count) FUSED_ATTENTION_LAMBDA {
      const std::int64_t at = static_cast<std::int64_t>(first) * C::kRows + v * L;
      constexpr int N = decltype(count)::value;
      Vec<T> p[N];
      Vec<T> grad[N];
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) p[i] = load(weights + at + i * C::kRows) - shift;
      exp_nonpositive<T>(p);
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) {
        const auto hidden = load(weights + at + i * C::kRows) == splat(-kInfinity<T>);
        p[i] *= factor;
        if constexpr (some_hidden) p[i] = hidden ? Vec<T>{} : p[i];
        if constexpr (!C::kPaired) store(weights + at + i * C::kRows, p[i]);
        if (!want_grad_scores) continue;
        grad[i] = p[i] * (load(grad_scores + at + i * C::kRows) - delta);
        if constexpr (some_hidden) grad[i] = hidden ? Vec<T>{} : grad[i];
        if constexpr (!C::kPaired) store(grad_scores + at + i * C::kRows, grad[i]);
      }
      if constexpr (C::kPaired) {
        store_pairs_of_rows<C>(p, first, v, scratch.weight_rows);
        if (!want_grad_scores) return;
        store_pairs_of_rows<C>(grad, first, v, scratch.grad_score_rows);
        store_weights<C>(grad, grad_scores + first / 2 * C::kRows + v * L);
      }
    };
    for_each_in_turn<ElementTraits<typename C::Element>::kDepth>(span.begin, span.end, weigh);
  }
}

/// Clears the partner of the last row where that lane holds no row: NaN may stand there, for a key
/// that is not finite.
template <class C, class Scratch>
void drop_row_without_lane(TileSpan span, int count, Scratch& scratch) {
  for (int j = span.begin; j < span.end; ++j) {
    const int at = (j * C::kRows + count) / 2;
    scratch.weight_rows[at].bits &= 0xFFFFU;
    scratch.grad_score_rows[at].bits &= 0xFFFFU;
  }
}

/// The weight of key j in a lane, of rows as operands.
template <class C>
FUSED_ATTENTION_INLINE typename C::Scalar row_weight_of(const typename C::Element* weights, int j,
                                                        int lane) {
  if constexpr (C::kPaired) {
    return from_pair(weights[(j * C::kRows + lane) / 2], lane);
  } else {
    return weights[j * C::kRows + lane];
  }
}

/// dV += P^T dO for the rows whose dO is Inf or NaN: only for keys they see.
template <class C>
void add_non_finite_grads(const core::BackwardProblem& call, const BackwardPanel<C>& panel,
                          std::int64_t tile_first, TileSpan span,
                          const typename C::Element* weights, typename C::Scalar* buffer,
                          const KeyGradients<typename C::Scalar>& sums) {
  const PanelRows<C>& rows = *panel.rows;
  const int dim = static_cast<int>(call.problem.sizes.dim_v);
  for (int n = 1; n <= panel.non_finite[0]; ++n) {
    const int lane = panel.non_finite[n];
    const core::ConstOperand& x = call.grad_output;
    load_row(call.problem.dtype, x.data, row_offset<C>(x, rows, lane), x.stride_d, dim, buffer);
    for (int j = span.begin; j < span.end; ++j) {
      if (!sees<C>(call.problem, rows, lane, tile_first + j)) continue;
      for (int d = 0; d < dim; ++d) {
        sums.value[j * sums.ld_value + d] += row_weight_of<C>(weights, j, lane) * buffer[d];
      }
    }
  }
}

/// sums[key][0 .. dim) += sum over the first `rows` rows of A[key][row] * x[row][0 .. dim), for the
/// keys of a span.
template <class C>
FUSED_ATTENTION_INLINE void accumulate_keys(TileSpan span, int rows, const typename C::Element* a,
                                            const typename C::Element* x, std::int64_t dim,
                                            typename C::Scalar* sums, std::int64_t ld) {
  using T = typename C::Scalar;
  using E = typename C::Element;
  constexpr int M = C::kBroadcast;
  constexpr int kSteps = C::kRows / ElementTraits<E>::kDepth;
  const int vectors = static_cast<int>(core::ceil_div(dim, kLanes<T>));
  const auto accumulate = [&](int depth) FUSED_ATTENTION_LAMBDA {
    for (int j = span.begin; j < span.end; j += M) {
      accumulate_columns<E, M, C::kVectors>(
          depth, vectors, Factors<E>{a + j * kSteps, 0, 1, kSteps}, x, ld, sums + j * ld, ld);
    }
  };
  // A constant depth is worth a twentieth of this product.
  if (C::kVectors > 1 && rows == C::kRows) {
    accumulate(kSteps);
  } else {
    accumulate(static_cast<int>(steps_of<E>(rows)));
  }
}

/// One panel against one tile, all in one of the forms of products.h. `summed_keys`: the keys
/// without those that are not finite. `sums`: of the tile.
template <class C, class Tile, class Scratch>
FUSED_ATTENTION_INLINE void backward_tile(const core::BackwardProblem& call,
                                          std::int64_t tile_first, TileSpan span, const Tile& keys,
                                          const Tile& summed_keys, const Tile& values,
                                          Scratch& scratch, const BackwardPanel<C>& panel,
                                          const KeyGradients<typename C::Scalar>& sums) {
  using E = typename C::Element;
  constexpr int M = C::kBroadcast;
  const core::Problem& problem = call.problem;
  const core::Sizes& sizes = problem.sizes;
  const bool want_grad_scores = call.grad_query.data != nullptr || call.grad_key.data != nullptr;
  bool some_hidden =
      problem.mask.data != nullptr || span.begin < span.full_begin || span.full_end < span.end;

  if (!score_tile<C>(problem, *panel.rows, tile_first, span, keys, panel.queries_by_dim,
                     scratch.mask, scratch.weights)) {
    return;
  }
  if (want_grad_scores) {
    dot_with_keys<C>(span, values, sizes.dim_v, *panel.rows, panel.grads_by_dim,
                     scratch.grad_scores);
  }
  if constexpr (C::kPaired) {
    some_hidden |= span.end % 2 != 0;
    end_with_whole_pair<C>(span, scratch.weights);
  }
  if (some_hidden) {
    weights_and_grad_scores<C, true>(span, panel, want_grad_scores, scratch);
  } else {
    weights_and_grad_scores<C, false>(span, panel, want_grad_scores, scratch);
  }
  // The products below take whole groups of keys.
  constexpr int kRowSize = C::kRows / ElementTraits<E>::kDepth;
  const auto rest = static_cast<std::size_t>((round_up(span.end, M) - span.end) * kRowSize);
  if constexpr (C::kPaired) {
    if (panel.rows->count % 2 != 0) drop_row_without_lane<C>(span, panel.rows->count, scratch);
  }
  __builtin_memset(scratch.weight_rows + span.end * kRowSize, 0, sizeof(E) * rest);
  __builtin_memset(scratch.grad_score_rows + span.end * kRowSize, 0, sizeof(E) * rest);

  if (call.grad_value.data != nullptr) {
    accumulate_keys<C>(span, panel.rows->count, scratch.weight_rows, panel.grads, sizes.dim_v,
                       sums.value, sums.ld_value);
    if (panel.non_finite[0] > 0) {
      add_non_finite_grads<C>(call, panel, tile_first, span, scratch.weight_rows, scratch.rows,
                              sums);
    }
  }
  if (!want_grad_scores) return;
  C::Score::template backward<C>(scratch.grad_scores, span, *panel.rows);
  if (call.grad_key.data != nullptr) {
    accumulate_keys<C>(span, panel.rows->count, scratch.grad_score_rows, panel.queries,
                       sizes.dim_qk, sums.key, sums.ld_key);
  }
  if (call.grad_query.data != nullptr) {
    sum_over_keys<C>(span, summed_keys, sizes.dim_qk, *panel.rows, scratch.grad_scores, nullptr,
                     panel.grad_queries);
  }
}

FUSED_ATTENTION_END_ISA_NAMESPACE
