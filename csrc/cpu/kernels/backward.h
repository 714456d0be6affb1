// Backward pass of one item: a block of query rows of a (b, kv head) pair against a chunk of the
// keys, for each key tile, for each panel. The blocks of a pair touch a tile in their order.
#pragma once

#include <sched.h>

#include <cstdint>

#include "../kernel_table.h"
#include "backward_tile.h"
#include "cut.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// Waits until `block` blocks have finished with the tile.
FUSED_ATTENTION_INLINE void wait_for_turn(TileOrder order, std::int64_t tile, std::int64_t block) {
  if (order.finished == nullptr) return;
  while (__atomic_load_n(order.finished + tile, __ATOMIC_ACQUIRE) != block) sched_yield();
}

FUSED_ATTENTION_INLINE void finish_turn(TileOrder order, std::int64_t tile, std::int64_t block) {
  if (order.finished == nullptr) return;
  __atomic_store_n(order.finished + tile, static_cast<std::int32_t>(block + 1), __ATOMIC_RELEASE);
}

/// Writes the finished rows of dK or dV of a tile times `factor`, a zero as +0 (see store_panel).
template <class T>
void write_key_gradient(core::DType dtype, const core::Operand& to, const core::RowBlock& block,
                        std::int64_t first, int count, int dim, T factor, T* sums,
                        std::int64_t ld) {
  if (to.data == nullptr) return;
  for (int j = 0; j < count; ++j) {
    T* row = sums + j * ld;
    for (int d = 0; d < dim; ++d) row[d] = row[d] * factor + T(0);
    store_row(dtype, to.data,
              block.batch * to.stride_b + block.head_kv * to.stride_h + (first + j) * to.stride_s,
              to.stride_d, dim, row);
  }
}

/// Elements of a panel's dQ.
template <class C>
FUSED_ATTENTION_INLINE std::int64_t grad_queries_size(const core::Sizes& sizes) {
  return round_up(sizes.dim_qk, C::kBroadcast) * C::kRows;
}

/// dQ of a panel from one chunk of the keys; panels of C or its tail lie alike.
template <class C>
FUSED_ATTENTION_INLINE typename C::Scalar* partial_grad_queries(const core::Sizes& sizes,
                                                                const BackwardPlan& plan,
                                                                std::int64_t panel,
                                                                std::int64_t chunk, void* partial) {
  return static_cast<typename C::Scalar*>(partial) +
         (panel * plan.chunks + chunk) * grad_queries_size<C>(sizes);
}

/// Reads the tile of `count` keys from `first` on, in the form of `block`, and calls f(keys, keys
/// without those that are not finite, values).
template <class C, class F>
FUSED_ATTENTION_INLINE void with_tile(const core::Problem& problem, const core::RowBlock& block,
                                      std::int64_t first, int count, BackwardScratch<C>& scratch,
                                      const F& f) {
  using E = typename C::Element;
  constexpr int M = C::kBroadcast;
  const core::Sizes& sizes = problem.sizes;
  const TileSource k = tile_source(problem, problem.key, sizes.dim_qk, block, first, count);
  const TileSource v = tile_source(problem, problem.value, sizes.dim_v, block, first, count);
  const TileForm form = tile_form<C>(block.count);
  if (form == TileForm::kPacked) {
    pack_tile<M>(k, scratch.rows, scratch.keys, nullptr);
    pack_tile<M>(v, scratch.rows, scratch.values, nullptr);
    f(factors_by_key<E, M>(scratch.keys, k.dim), factors_by_dim<E, M>(scratch.keys),
      factors_by_key<E, M>(scratch.values, v.dim));
    return;
  }
  if constexpr (!C::kPaired) {
    const RowAccess access = row_access<C>(block.count);
    NonFinite ignored;
    if (form == TileForm::kRows) {
      const RowTile<E> keys = read_rows(k, access, scratch.keys.by_key);
      f(factors_by_key<E, M>(keys),
        factors_by_dim<E, M>(
            without_non_finite(keys, count, k.dim, access, scratch.keys.by_dim, &ignored)),
        factors_by_key<E, M>(read_rows(v, access, scratch.values.by_key)));
    } else if constexpr (C::kVectors == 1) {
      const StoredTile<E> keys = stored_rows(k, access, scratch.keys.by_key);
      f(keys, without_non_finite(keys, count, k.dim, access, scratch.keys.by_dim, &ignored),
        stored_rows(v, access, scratch.values.by_key));
    }
  }
}

template <class C>
void backward_item(const core::BackwardProblem& call, const BackwardPlan& plan, BackwardItem item,
                   const BackwardMemory& memory) {
  using T = typename C::Scalar;
  constexpr int M = C::kBroadcast;
  const core::Problem& problem = call.problem;
  const core::Sizes& sizes = problem.sizes;
  const int dim_qk = static_cast<int>(sizes.dim_qk);
  const int dim_v = static_cast<int>(sizes.dim_v);
  const core::RowBlock block = core::row_block(plan.rows, sizes, item.head, item.block);
  const TileForm form = tile_form<C>(block.count);
  // Rows of pairs are not scaled.
  const T key_factor = C::kPaired ? static_cast<T>(problem.scale) : T(1);
  BackwardScratch<C> scratch(sizes, plan.rows.block_rows, memory.scratch);
  const KeyGradients<T> all_sums(sizes, plan.rows.blocks, memory.accumulators);
  // The products of few rows write the lanes of those only; the others take part in what follows.
  if (form == TileForm::kFewRows) {
    __builtin_memset(scratch.weights, 0, sizeof(T) * kTileKeys * C::kRows);
    __builtin_memset(scratch.grad_scores, 0, sizeof(T) * kTileKeys * C::kRows);
  }
  const auto seen_keys =
      core::keys_of_any_row(problem.band, block.first / core::group_size(sizes),
                            (block.first + block.count - 1) / core::group_size(sizes), sizes.seq_k);

  for_each_panel<C>(block.count, [&](auto config, std::int64_t p, std::int64_t first) {
    using P = decltype(config);
    const BackwardPanel<P> panel = scratch.template panel<P>(sizes, p);
    prepare_panel<P>(call, block, first, form, scratch.rows, panel);
    refine_shifts<P>(problem, block, form, scratch, panel);
  });

  const std::int64_t last_tile = core::min64(plan.key_tiles, (item.chunk + 1) * plan.chunk_tiles);
  for (std::int64_t tile = item.chunk * plan.chunk_tiles; tile < last_tile; ++tile) {
    const std::int64_t first = tile * kTileKeys;
    const int count = static_cast<int>(core::min64(kTileKeys, sizes.seq_k - first));
    const KeyGradients<T> sums = all_sums.of_tile(tile);
    const auto take_turn = [&] {
      wait_for_turn(memory.order, tile, item.block);
      if (item.block > 0) return;
      const auto keys = static_cast<std::size_t>(round_up(count, M));
      __builtin_memset(sums.key, 0, sizeof(T) * keys * sums.ld_key);
      __builtin_memset(sums.value, 0, sizeof(T) * keys * sums.ld_value);
    };
    if (first < seen_keys.end && first + count > seen_keys.begin) {
      // Inlined for each form, so that the strides of a packed tile are constants in the products.
      const auto add_panels = [&](const auto&... tile_forms) FUSED_ATTENTION_LAMBDA {
        take_turn();
        const auto add_panel = [&](auto config, std::int64_t p,
                                   std::int64_t) FUSED_ATTENTION_LAMBDA {
          using P = decltype(config);
          const BackwardPanel<P> panel = scratch.template panel<P>(sizes, p);
          const TileSpan span = span_of<P>(problem, *panel.rows, first, count);
          if (span.begin >= span.end) return;
          backward_tile<P>(call, first, span, tile_forms..., scratch, panel, sums);
        };
        for_each_panel<C>(block.count, add_panel);
      };
      with_tile<C>(problem, block, first, count, scratch, add_panels);
    } else {
      take_turn();
    }
    if (item.block == core::max64(plan.rows.blocks, 1) - 1) {
      write_key_gradient(problem.dtype, call.grad_key, block, first, count, dim_qk, key_factor,
                         sums.key, sums.ld_key);
      write_key_gradient(problem.dtype, call.grad_value, block, first, count, dim_v, T(1),
                         sums.value, sums.ld_value);
    }
    finish_turn(memory.order, tile, item.block);
  }

  if (call.grad_query.data == nullptr) return;
  for_each_panel<C>(block.count, [&](auto config, std::int64_t p, std::int64_t) {
    using P = decltype(config);
    const BackwardPanel<P> panel = scratch.template panel<P>(sizes, p);
    if (form == TileForm::kFewRows) {
      move_into_lanes<P>(sizes.dim_qk, panel.rows->count, scratch.rows, panel.grad_queries);
    }
    if (plan.chunks == 1) {
      write_grad_queries<P>(call, panel, scratch.rows);
    } else {
      __builtin_memcpy(partial_grad_queries<C>(sizes, plan, p, item.chunk, memory.partial),
                       panel.grad_queries,
                       sizeof(T) * static_cast<std::size_t>(grad_queries_size<P>(sizes)));
    }
  });
}

/// Sums dQ of a row block over its chunks, in the order of the keys, and writes it.
template <class C>
void backward_merge(const core::BackwardProblem& call, const BackwardPlan& plan, BackwardItem item,
                    const BackwardMemory& memory) {
  using T = typename C::Scalar;
  if (call.grad_query.data == nullptr) return;
  const core::Sizes& sizes = call.problem.sizes;
  const core::RowBlock block = core::row_block(plan.rows, sizes, item.head, item.block);
  BackwardScratch<C> scratch(sizes, plan.rows.block_rows, memory.scratch);
  for_each_panel<C>(block.count, [&](auto config, std::int64_t p, std::int64_t first) {
    using P = decltype(config);
    const BackwardPanel<P> panel = scratch.template panel<P>(sizes, 0);
    place_rows<P>(sizes, block, first, *panel.rows);
    for (std::int64_t n = 0; n < grad_queries_size<P>(sizes); n += kLanes<T>) {
      Vec<T> sum{};
      for (std::int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        sum += load(partial_grad_queries<C>(sizes, plan, p, chunk, memory.partial) + n);
      }
      store(panel.grad_queries + n, sum);
    }
    write_grad_queries<P>(call, panel, scratch.rows);
  });
}

template <class C>
BackwardPlan plan_backward(const core::BackwardProblem& call, int variant, std::int64_t threads) {
  using T = typename C::Scalar;
  const core::Sizes& sizes = call.problem.sizes;
  const Cut<C> cut(sizes, 2 * kPanelFloats, 3 * sizes.dim_qk + 2 * sizes.dim_v, threads);
  BackwardPlan plan;
  plan.variant = variant;
  plan.rows = cut.rows;
  plan.key_tiles = cut.tiles;
  plan.chunks = cut.chunks;
  plan.chunk_tiles = cut.chunk_tiles;
  plan.scratch_bytes = BackwardScratch<C>(sizes, plan.rows.block_rows, nullptr).bytes;
  plan.accumulator_bytes = KeyGradients<T>(sizes, plan.rows.blocks, nullptr).bytes;
  if (plan.chunks > 1) {
    plan.partial_bytes = plan.rows.block_rows / C::kRows * plan.chunks *
                         grad_queries_size<C>(sizes) * static_cast<std::int64_t>(sizeof(T));
  }
  return plan;
}

FUSED_ATTENTION_END_ISA_NAMESPACE
