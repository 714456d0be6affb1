// Forward pass of one item: a block of query rows over its key tiles.
// FlashAttention-2 (Dao 2023), Algorithm 1, with the rows of a kv head's whole group in the lanes.
#pragma once

#include <cstdint>

#include "../kernel_table.h"
#include "cut.h"
#include "forward_panel.h"
#include "products.h"
#include "softmax.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// The weight of key j in a lane, as softmax_tile leaves it.
template <class C>
FUSED_ATTENTION_INLINE typename C::Scalar weight_of(const typename C::Scalar* weights, int j,
                                                    int lane) {
  if constexpr (C::kPaired) {
    const auto* pairs = reinterpret_cast<const typename C::Element*>(weights);
    return from_pair(pairs[j / 2 * C::kRows + lane], j);
  } else {
    return weights[j * C::kRows + lane];
  }
}

/// Adds p * v for values that are Inf or NaN: only to rows that see the key.
template <class C, class Values>
void add_non_finite_values(const core::Problem& problem, const NonFinite& non_finite,
                           std::int64_t tile_first, TileSpan span, const Values& values,
                           const ForwardPanel<C>& panel, const typename C::Scalar* weights,
                           typename C::Scalar* buffer) {
  const core::ConstOperand& value = problem.value;
  const int dim = static_cast<int>(problem.sizes.dim_v);
  const PanelRows<C>& rows = *panel.rows;
  for (int n = 0; n < non_finite.count; ++n) {
    const int j = non_finite.key[n];
    if (j < span.begin || j >= span.end) continue;
    const std::int64_t head_kv = rows.head[0] / core::group_size(problem.sizes);
    load_row(
        problem.dtype, value.data,
        rows.batch * value.stride_b + head_kv * value.stride_h + (tile_first + j) * value.stride_s,
        value.stride_d, dim, buffer);
    for (int lane = 0; lane < rows.count; ++lane) {
      if (!sees<C>(problem, rows, lane, tile_first + j)) continue;
      for (int d = 0; d < dim; ++d) {
        panel.output[place_of<C>(values, dim, lane, d)] +=
            weight_of<C>(weights, j, lane) * buffer[d];
      }
    }
  }
}

/// output = alpha * output + P V of one tile; Inf and NaN in V reach only the rows that see them.
/// Those are out of the tile and recorded already...
template <class C, class Scratch>
FUSED_ATTENTION_INLINE void add_values(const core::Problem& problem, std::int64_t tile_first,
                                       TileSpan span, int,
                                       const Factors<typename C::Element>& values, Scratch& scratch,
                                       const ForwardPanel<C>& panel) {
  sum_over_keys<C>(span, values, problem.sizes.dim_v, *panel.rows, scratch.scores, scratch.alpha,
                   panel.output);
  if (scratch.non_finite.count > 0) {
    add_non_finite_values<C>(problem, scratch.non_finite, tile_first, span, values, panel,
                             scratch.scores, scratch.rows);
  }
}
/// ... or, for few rows, are not looked for, which would take as long as the product: they show in
/// its sums, as 0 * Inf is NaN, and then it is formed again without them.
template <class C, class Scratch>
void add_values(const core::Problem& problem, std::int64_t tile_first, TileSpan span, int count,
                const StoredTile<typename C::Scalar>& values, Scratch& scratch,
                const ForwardPanel<C>& panel) {
  using T = typename C::Scalar;
  const std::int64_t dim = problem.sizes.dim_v;
  const std::int64_t length = panel.rows->count * vector_length<T>(dim);
  const auto bytes = sizeof(T) * static_cast<std::size_t>(length);
  __builtin_memcpy(scratch.rows, panel.output, bytes);
  sum_over_keys<C>(span, values, dim, *panel.rows, scratch.scores, scratch.alpha, panel.output);
  if (all_finite(panel.output, static_cast<int>(length))) return;
  __builtin_memcpy(panel.output, scratch.rows, bytes);
  const StoredTile<T> finite_values =
      without_non_finite(values, count, static_cast<int>(dim), row_access<C>(panel.rows->count),
                         scratch.values.by_dim, &scratch.non_finite);
  sum_over_keys<C>(span, finite_values, dim, *panel.rows, scratch.scores, scratch.alpha,
                   panel.output);
  add_non_finite_values<C>(problem, scratch.non_finite, tile_first, span, values, panel,
                           scratch.scores, scratch.rows);
}

/// One panel against one tile of `count` keys and values, both in the same form (products.h).
template <class C, class Tile, class Scratch>
FUSED_ATTENTION_INLINE void forward_tile(const core::Problem& problem, std::int64_t tile_first,
                                         TileSpan span, int count, const Tile& keys,
                                         const Tile& values, Scratch& scratch,
                                         const ForwardPanel<C>& panel) {
  if (!score_tile<C>(problem, *panel.rows, tile_first, span, keys, panel.queries, scratch.mask,
                     scratch.scores)) {
    return;
  }
  softmax_tile<C>(span, scratch.scores, panel.max, panel.sum, scratch.alpha);
  add_values<C>(problem, tile_first, span, count, values, scratch, panel);
}

/// All panels of a block against the tile of `count` keys from `first` on.
template <class C>
FUSED_ATTENTION_INLINE void forward_tiles(const core::Problem& problem, const core::RowBlock& block,
                                          std::int64_t first, int count,
                                          ForwardScratch<C>& scratch) {
  using E = typename C::Element;
  constexpr int M = C::kBroadcast;
  const core::Sizes& sizes = problem.sizes;
  // Inlined for each form, so that the strides of a packed tile are constants in the products.
  const auto multiply = [&](const auto& keys, const auto& values) FUSED_ATTENTION_LAMBDA {
    const auto add_panel = [&](auto config, std::int64_t index,
                               std::int64_t) FUSED_ATTENTION_LAMBDA {
      using P = decltype(config);
      const ForwardPanel<P> panel = scratch.template panel<P>(sizes, index);
      const TileSpan span = span_of<P>(problem, *panel.rows, first, count);
      if (span.begin >= span.end) return;
      forward_tile<P>(problem, first, span, count, keys, values, scratch, panel);
    };
    for_each_panel<C>(block.count, add_panel);
  };
  const TileSource keys = tile_source(problem, problem.key, sizes.dim_qk, block, first, count);
  const TileSource values = tile_source(problem, problem.value, sizes.dim_v, block, first, count);
  const TileForm form = tile_form<C>(block.count);
  if (form == TileForm::kPacked) {
    pack_tile<M>(keys, scratch.rows, scratch.keys, nullptr);
    pack_tile<M>(values, scratch.rows, scratch.values, &scratch.non_finite);
    multiply(factors_by_key<E, M>(scratch.keys, keys.dim), factors_by_dim<E, M>(scratch.values));
    return;
  }
  if constexpr (!C::kPaired) {
    E* key_buffer = scratch.keys.by_key;
    E* value_buffer = scratch.values.by_dim;
    const RowAccess access = row_access<C>(block.count);
    if (form == TileForm::kRows) {
      multiply(factors_by_key<E, M>(read_rows(keys, access, key_buffer)),
               factors_by_dim<E, M>(without_non_finite(read_rows(values, access, value_buffer),
                                                       count, values.dim, access, value_buffer,
                                                       &scratch.non_finite)));
    } else if constexpr (C::kVectors == 1) {
      multiply(stored_rows(keys, access, key_buffer), stored_rows(values, access, value_buffer));
    }
  }
}

template <class C>
FUSED_ATTENTION_INLINE void load_queries(const core::Problem& problem, bool few,
                                         typename C::Scalar* buffer, const ForwardPanel<C>& panel) {
  using T = typename C::Scalar;
  const int dim = static_cast<int>(problem.sizes.dim_qk);
  if constexpr (C::kPaired) {
    load_pair_panel<C>(problem.query, *panel.rows, dim, buffer, panel.queries);
  } else if (few) {
    load_few_rows<C>(problem.dtype, problem.query, *panel.rows, dim, static_cast<T>(problem.scale),
                     buffer, panel.queries);
  } else {
    load_panel<C>(problem.dtype, problem.query, *panel.rows, dim, static_cast<T>(problem.scale),
                  buffer, panel.queries);
  }
}

template <class C>
void forward_item(const core::ForwardProblem& call, const ForwardPlan& plan, std::int64_t item,
                  void* memory, void* partial) {
  using T = typename C::Scalar;
  constexpr int M = C::kBroadcast;
  const core::Problem& problem = call.problem;
  const core::Sizes& sizes = problem.sizes;
  const std::int64_t chunk = item % plan.chunks;
  const std::int64_t pair = item / plan.chunks;
  // Later rows see more keys under a causal mask: heaviest first keeps the threads busy to the end.
  const std::int64_t index = plan.rows.blocks - 1 - pair % plan.rows.blocks;
  const core::RowBlock block = core::row_block(plan.rows, sizes, pair / plan.rows.blocks, index);
  ForwardScratch<C> scratch(sizes, plan.rows.block_rows, memory);
  const bool few = tile_form<C>(block.count) == TileForm::kFewRows;
  // The products of few rows write the lanes of those only; the others take part in what follows.
  if (few) __builtin_memset(scratch.scores, 0, sizeof(T) * kTileKeys * C::kRows);

  for_each_panel<C>(block.count, [&](auto config, std::int64_t p, std::int64_t first) {
    using P = decltype(config);
    const ForwardPanel<P> panel = scratch.template panel<P>(sizes, p);
    place_rows<P>(sizes, block, first, *panel.rows);
    load_queries<P>(problem, few, scratch.rows, panel);
    __builtin_memset(panel.output, 0,
                     sizeof(T) * static_cast<std::size_t>(round_up(sizes.dim_v, M) * P::kRows));
    for (int lane = 0; lane < P::kRows; ++lane) {
      panel.max[lane] = -kInfinity<T>;
      panel.sum[lane] = 0;
    }
  });

  const std::int64_t group = core::group_size(sizes);
  const auto keys = core::keys_of_any_row(problem.band, block.first / group,
                                          (block.first + block.count - 1) / group, sizes.seq_k);
  const std::int64_t last_tile =
      core::min64(core::ceil_div(keys.end, kTileKeys), (chunk + 1) * plan.chunk_tiles);
  for (std::int64_t tile = core::max64(keys.begin / kTileKeys, chunk * plan.chunk_tiles);
       tile < last_tile; ++tile) {
    const std::int64_t first = tile * kTileKeys;
    const int count = static_cast<int>(core::min64(kTileKeys, sizes.seq_k - first));
    forward_tiles<C>(problem, block, first, count, scratch);
  }

  for_each_panel<C>(block.count, [&](auto config, std::int64_t p, std::int64_t) {
    using P = decltype(config);
    const ForwardPanel<P> panel = scratch.template panel<P>(sizes, p);
    if (few) move_into_lanes<P>(sizes.dim_v, panel.rows->count, scratch.rows, panel.output);
    if (plan.chunks == 1) {
      write_panel<P>(call, panel, scratch.rows);
    } else {
      store_partial<P>(sizes, panel,
                       PartialPanel<P>(PartialPanel<C>::elements(sizes), p, chunk, plan.chunks,
                                       static_cast<T*>(partial)));
    }
  });
}

/// Merges the chunks of a row block by their m and l, in the order of the keys.
template <class C>
void forward_merge(const core::ForwardProblem& call, const ForwardPlan& plan, std::int64_t head,
                   std::int64_t index, void* memory, const void* partial) {
  using T = typename C::Scalar;
  const core::Sizes& sizes = call.problem.sizes;
  const core::RowBlock block = core::row_block(plan.rows, sizes, head, index);
  ForwardScratch<C> scratch(sizes, plan.rows.block_rows, memory);
  T* base = static_cast<T*>(const_cast<void*>(partial));
  for_each_panel<C>(block.count, [&](auto config, std::int64_t p, std::int64_t first) {
    using P = decltype(config);
    const ForwardPanel<P> panel = scratch.template panel<P>(sizes, 0);
    const auto part = [&](std::int64_t chunk) {
      return PartialPanel<P>(PartialPanel<C>::elements(sizes), p, chunk, plan.chunks, base);
    };
    place_rows<P>(sizes, block, first, *panel.rows);
    for (int lane = 0; lane < P::kRows; ++lane) {
      T max = -kInfinity<T>;
      for (std::int64_t c = 0; c < plan.chunks; ++c) {
        const T m = part(c).max[lane];
        if (m > max) max = m;
      }
      panel.max[lane] = max;
      panel.sum[lane] = 0;
    }
    __builtin_memset(panel.output, 0, sizeof(T) * static_cast<std::size_t>(sizes.dim_v * P::kRows));
    for (std::int64_t c = 0; c < plan.chunks; ++c) {
      const PartialPanel<P> from = part(c);
      for (int v = 0; v < P::kRows; v += kLanes<T>) {
        const Vec<T> max = load(panel.max + v);
        const Vec<T> shift = max == splat(-kInfinity<T>) ? Vec<T>{} : max;
        const Vec<T> weight = exp_nonpositive<T>(load(from.max + v) - shift);
        store(panel.sum + v, load(panel.sum + v) + weight * load(from.sum + v));
        for (std::int64_t d = 0; d < sizes.dim_v; ++d) {
          T* at = panel.output + d * P::kRows + v;
          store(at, load(at) + weight * load(from.output + d * P::kRows + v));
        }
      }
    }
    write_panel<P>(call, panel, scratch.rows);
  });
}

template <class C>
ForwardPlan plan_forward(const core::ForwardProblem& call, int variant, std::int64_t threads) {
  using T = typename C::Scalar;
  const core::Sizes& sizes = call.problem.sizes;
  const Cut<C> cut(sizes, kPanelFloats, sizes.dim_qk + sizes.dim_v, threads);
  ForwardPlan plan;
  plan.variant = variant;
  plan.rows = cut.rows;
  plan.chunks = cut.chunks;
  plan.chunk_tiles = cut.chunk_tiles;
  plan.items = plan.rows.heads * plan.rows.blocks * plan.chunks;
  plan.scratch_bytes = ForwardScratch<C>(sizes, plan.rows.block_rows, nullptr).bytes;
  if (plan.chunks > 1) {
    plan.partial_bytes = plan.rows.block_rows / C::kRows * plan.chunks *
                         PartialPanel<C>::elements(sizes) * static_cast<std::int64_t>(sizeof(T));
  }
  return plan;
}

FUSED_ATTENTION_END_ISA_NAMESPACE
