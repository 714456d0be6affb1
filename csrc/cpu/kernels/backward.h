// Backward pass of one block of query rows of a (b, kv head) pair.
//
// For each key tile, for each panel of the block: rebuild P, form dS, and add to dV, dK
// (accumulators of the pair, row-major) and dQ (of the block). The blocks of a pair touch a tile in
// their order.
#pragma once

#include <sched.h>

#include <cstdint>

#include "../kernel_table.h"
#include "backward_panel.h"
#include "gemm.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// dK as [Sk][D padded] and dV as [Sk][Dv padded], rounded up to whole tiles.
template <class T>
struct KeyGradients {
  KeyGradients(const core::Sizes& sizes, void* base)
      : ld_key(padded_length<T>(sizes.dim_qk)), ld_value(padded_length<T>(sizes.dim_v)) {
    Arena arena(base);
    const std::int64_t keys = round_up(sizes.seq_k, kTileKeys);
    key = arena.take<T>(keys * ld_key);
    value = arena.take<T>(keys * ld_value);
    bytes = arena.bytes();
  }
  std::int64_t ld_key;
  std::int64_t ld_value;
  T* key;
  T* value;
  std::int64_t bytes;
};

/// P and dS of a tile, keys x rows, from scores and dP in place. `some_hidden`: the tile may hold
/// scores of -inf that stand for hidden keys; their P and dS are 0 whatever else is NaN.
template <class C, bool some_hidden>
void weights_and_grad_scores(TileSpan span, const BackwardPanel<C>& panel, bool want_grad_scores,
                             typename C::Scalar* weights, typename C::Scalar* grad_scores) {
  using T = typename C::Scalar;
  constexpr int L = kLanes<T>;
  for (int v = 0; v < C::kVectors; ++v) {
    const Vec<T> shift = load(panel.shift + v * L);
    const Vec<T> factor = load(panel.factor + v * L);
    const Vec<T> delta = load(panel.delta + v * L);
    for (int j = span.begin; j < span.end; ++j) {
      const std::int64_t at = static_cast<std::int64_t>(j) * C::kRows + v * L;
      const Vec<T> score = load(weights + at);
      Vec<T> p = exp_nonpositive<T>(score - shift) * factor;
      if constexpr (some_hidden) p = score == splat(-kInfinity<T>) ? Vec<T>{} : p;
      store(weights + at, p);
      if (!want_grad_scores) continue;
      Vec<T> grad = p * (load(grad_scores + at) - delta);
      if constexpr (some_hidden) grad = score == splat(-kInfinity<T>) ? Vec<T>{} : grad;
      store(grad_scores + at, grad);
    }
  }
}

/// dV += P^T dO for the rows whose dO is Inf or NaN: only for keys they see.
template <class C>
void add_non_finite_grads(const core::BackwardProblem& call, const BackwardPanel<C>& panel,
                          std::int64_t tile_first, TileSpan span, const typename C::Scalar* weights,
                          typename C::Scalar* buffer,
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
        sums.value[(tile_first + j) * sums.ld_value + d] +=
            weights[j * C::kRows + lane] * buffer[d];
      }
    }
  }
}

/// sums[key][0 .. dim) += sum over rows of A[key][row] * x[row][0 .. dim), for the keys of a span.
template <class C>
FUSED_ATTENTION_INLINE void accumulate_keys(TileSpan span, const typename C::Scalar* a,
                                            const typename C::Scalar* x, std::int64_t dim,
                                            typename C::Scalar* sums, std::int64_t ld) {
  using T = typename C::Scalar;
  constexpr int M = C::kBroadcast;
  const int vectors = static_cast<int>(core::ceil_div(dim, kLanes<T>));
  for (int j = span.begin; j < span.end; j += M) {
    accumulate_columns<T, M, C::kVectors>(
        C::kRows, vectors, Factors<T>{a + j * C::kRows, 0, 1, C::kRows}, x, ld, sums + j * ld, ld);
  }
}

/// One panel against one packed tile.
template <class C, class Scratch>
FUSED_ATTENTION_INLINE void backward_tile(const core::BackwardProblem& call,
                                          std::int64_t tile_first, TileSpan span, Scratch& scratch,
                                          const BackwardPanel<C>& panel,
                                          const KeyGradients<typename C::Scalar>& sums) {
  using T = typename C::Scalar;
  constexpr int M = C::kBroadcast;
  const core::Problem& problem = call.problem;
  const core::Sizes& sizes = problem.sizes;
  const bool want_grad_scores = call.grad_query.data != nullptr || call.grad_key.data != nullptr;
  const bool some_hidden =
      problem.mask.data != nullptr || span.begin < span.full_begin || span.full_end < span.end;

  if (!score_tile<C>(problem, *panel.rows, tile_first, span,
                     factors_by_key<T, M>(scratch.keys, sizes.dim_qk), panel.queries_by_dim,
                     scratch.mask, scratch.weights)) {
    return;
  }
  if (want_grad_scores) {
    Factors<T> values = factors_by_key<T, M>(scratch.values, sizes.dim_v);
    values.data += span.begin / M * values.group;
    multiply_groups<T, M, C::kVectors, Into::kOverwrite>(
        (span.end - span.begin + M - 1) / M, static_cast<int>(sizes.dim_v), values,
        panel.grads_by_dim, scratch.grad_scores + span.begin * C::kRows);
  }
  if (some_hidden) {
    weights_and_grad_scores<C, true>(span, panel, want_grad_scores, scratch.weights,
                                     scratch.grad_scores);
  } else {
    weights_and_grad_scores<C, false>(span, panel, want_grad_scores, scratch.weights,
                                      scratch.grad_scores);
  }
  // The products below take whole groups of keys.
  const auto rest = static_cast<std::size_t>(round_up(span.end, M) - span.end) * C::kRows;
  __builtin_memset(scratch.weights + span.end * C::kRows, 0, sizeof(T) * rest);
  __builtin_memset(scratch.grad_scores + span.end * C::kRows, 0, sizeof(T) * rest);

  if (call.grad_value.data != nullptr) {
    accumulate_keys<C>(span, scratch.weights, panel.grads, sizes.dim_v,
                       sums.value + tile_first * sums.ld_value, sums.ld_value);
    if (panel.non_finite[0] > 0) {
      add_non_finite_grads<C>(call, panel, tile_first, span, scratch.weights, scratch.rows, sums);
    }
  }
  if (!want_grad_scores) return;
  C::Score::template backward<C>(scratch.grad_scores, span, *panel.rows);
  if (call.grad_key.data != nullptr) {
    accumulate_keys<C>(span, scratch.grad_scores, panel.queries, sizes.dim_qk,
                       sums.key + tile_first * sums.ld_key, sums.ld_key);
  }
  if (call.grad_query.data != nullptr) {
    multiply_groups<T, M, C::kVectors, Into::kAdd>(
        static_cast<int>(core::ceil_div(sizes.dim_qk, M)), span.end - span.begin,
        factors_by_dim<T, M>(scratch.keys, span.begin), scratch.grad_scores + span.begin * C::kRows,
        panel.grad_queries);
  }
}

/// Waits until `block` blocks have finished with the tile.
FUSED_ATTENTION_INLINE void wait_for_turn(TileOrder order, std::int64_t tile, std::int64_t block) {
  if (order.finished == nullptr) return;
  while (__atomic_load_n(order.finished + tile, __ATOMIC_ACQUIRE) != block) sched_yield();
}

FUSED_ATTENTION_INLINE void finish_turn(TileOrder order, std::int64_t tile, std::int64_t block) {
  if (order.finished == nullptr) return;
  __atomic_store_n(order.finished + tile, static_cast<std::int32_t>(block + 1), __ATOMIC_RELEASE);
}

/// Writes the finished rows of dK or dV.
template <class T>
void write_key_gradient(core::DType dtype, const core::Operand& to, const core::RowBlock& block,
                        std::int64_t first, int count, int dim, const T* sums, std::int64_t ld) {
  if (to.data == nullptr) return;
  for (int j = 0; j < count; ++j) {
    store_row(dtype, to.data,
              block.batch * to.stride_b + block.head_kv * to.stride_h + (first + j) * to.stride_s,
              to.stride_d, dim, sums + (first + j) * ld);
  }
}

template <class C>
void backward_block(const core::BackwardProblem& call, const BackwardPlan& plan, std::int64_t head,
                    std::int64_t index, void* memory, void* accumulators, TileOrder order) {
  using T = typename C::Scalar;
  constexpr int M = C::kBroadcast;
  const core::Problem& problem = call.problem;
  const core::Sizes& sizes = problem.sizes;
  const int dim_qk = static_cast<int>(sizes.dim_qk);
  const int dim_v = static_cast<int>(sizes.dim_v);
  const core::RowBlock block = core::row_block(plan.rows, sizes, head, index);
  BackwardScratch<C> scratch(sizes, plan.rows.block_rows, memory);
  const KeyGradients<T> sums(sizes, accumulators);

  for_each_panel<C>(block.count, [&](auto config, std::int64_t p, std::int64_t first) {
    using P = decltype(config);
    const BackwardPanel<P> panel = scratch.template panel<P>(sizes, p);
    prepare_panel<P>(call, block, first, scratch.rows, panel);
    refine_shifts<P>(problem, block, scratch, panel);
  });

  for (std::int64_t tile = 0; tile < plan.key_tiles; ++tile) {
    const std::int64_t first = tile * kTileKeys;
    const int count = static_cast<int>(core::min64(kTileKeys, sizes.seq_k - first));
    bool packed = false;
    bool my_turn = false;
    const auto take_turn = [&] {
      if (my_turn) return;
      wait_for_turn(order, tile, index);
      my_turn = true;
      if (index > 0) return;
      const auto keys = static_cast<std::size_t>(round_up(count, M));
      __builtin_memset(sums.key + first * sums.ld_key, 0, sizeof(T) * keys * sums.ld_key);
      __builtin_memset(sums.value + first * sums.ld_value, 0, sizeof(T) * keys * sums.ld_value);
    };
    for_each_panel<C>(block.count, [&](auto config, std::int64_t p, std::int64_t) {
      using P = decltype(config);
      const BackwardPanel<P> panel = scratch.template panel<P>(sizes, p);
      const TileSpan span = span_of<P>(problem, *panel.rows, first, count, true);
      if (span.begin >= span.end) return;
      if (!packed) {
        pack_tile<T, M>(problem.dtype, problem.key, block.batch, block.head_kv, first, count,
                        dim_qk, scratch.rows, scratch.keys, nullptr);
        pack_tile<T, M>(problem.dtype, problem.value, block.batch, block.head_kv, first, count,
                        dim_v, scratch.rows, scratch.values, nullptr);
        packed = true;
      }
      take_turn();
      backward_tile<P>(call, first, span, scratch, panel, sums);
    });
    take_turn();
    if (index == core::max64(plan.rows.blocks, 1) - 1) {
      write_key_gradient(problem.dtype, call.grad_key, block, first, count, dim_qk, sums.key,
                         sums.ld_key);
      write_key_gradient(problem.dtype, call.grad_value, block, first, count, dim_v, sums.value,
                         sums.ld_value);
    }
    finish_turn(order, tile, index);
  }

  if (call.grad_query.data == nullptr) return;
  for_each_panel<C>(block.count, [&](auto config, std::int64_t p, std::int64_t) {
    using P = decltype(config);
    write_grad_queries<P>(call, scratch.template panel<P>(sizes, p), scratch.rows);
  });
}

template <class C>
BackwardPlan plan_backward(const core::BackwardProblem& call, int variant) {
  using T = typename C::Scalar;
  const core::Sizes& sizes = call.problem.sizes;
  const core::TileLimits limits{C::kRows, kMostPanels, 2 * kPanelFloats, kTileKeys};
  BackwardPlan plan;
  plan.variant = variant;
  plan.rows = core::schedule_rows(sizes, limits, 3 * sizes.dim_qk + 2 * sizes.dim_v);
  plan.key_tiles = core::ceil_div(sizes.seq_k, kTileKeys);
  plan.scratch_bytes = BackwardScratch<C>(sizes, plan.rows.block_rows, nullptr).bytes;
  plan.accumulator_bytes = KeyGradients<T>(sizes, nullptr).bytes;
  return plan;
}

FUSED_ATTENTION_END_ISA_NAMESPACE
