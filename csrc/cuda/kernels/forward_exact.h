// Forward pass for fp32 and fp64: every product is a fused multiply-add of the type itself. Tiles
// go through shared memory; each thread keeps a rectangle of the scores and of the output in
// registers.
#pragma once

#include "../../core/online_softmax.h"
#include "exact_scores.h"
#include "params.h"
#include "partials.h"

namespace fused_attention::cuda {

template <class C>
FUSED_ATTENTION_DEVICE void exact_forward_body(const ForwardParams& params);

template <class Element_, ExactTile kTile_>
struct ExactForwardConfig {
  using Element = Element_;
  static constexpr ExactTile kTile = kTile_;
  static constexpr int kThreads = kTile.kThreads;
  static constexpr int kRows = kTile.rows;
  static constexpr int kKeys = kTile.keys;
  static constexpr int kColumns = kTile.columns;

  using Table = BlockTable<kRows, kKeys, kThreads>;
  using Tiles = ExactTiles<Element, kRows, kKeys, kTile.chunk, kColumns>;
  static constexpr int kTableOffset = Tiles::kBytes;
  static constexpr int kSharedBytes = kTableOffset + Table::kBytes;

  /// The kernel.
  using Params = ForwardParams;
  FUSED_ATTENTION_DEVICE static void run(const Params& params) {
    exact_forward_body<ExactForwardConfig>(params);
  }
};

template <class C, class T>
FUSED_ATTENTION_DEVICE void write_exact_forward(const ForwardParams& params,
                                                const typename C::Table& table,
                                                const T (&max)[C::Tiles::kR],
                                                const T (&sum)[C::Tiles::kR],
                                                const T (&output)[C::Tiles::kR][C::Tiles::kC]) {
  const core::Sizes& sizes = params.call.problem.sizes;
  const core::Operand& to = params.call.output;
  const BlockRows rows = table.rows();
  T factor[C::Tiles::kR];
  FUSED_ATTENTION_UNROLL
  for (int r = 0; r < C::Tiles::kR; ++r) {
    const T total = sum_of_exact_row(sum[r]);
    factor[r] = core::output_scale(total);
    const int row = exact_row<C::Tiles::kR>(r);
    if (row < rows.count && rows.first_value == 0 && exact_lane() == 0) {
      const GlobalPtr<T> lse(static_cast<T*>(params.call.logsumexp));
      store_global(lse + row_index(sizes, rows, table.place(row)),
                   core::logsumexp(max[r], total, [](T x) { return logarithm(x); }));
    }
  }
  write_exact_rows(output, factor, to, rows.first_value, static_cast<int>(sizes.dim_v),
                   BlockTarget<typename C::Table>{table, to});
}

/// The same for a chunk of the keys.
template <class C, class T>
FUSED_ATTENTION_DEVICE void write_exact_partials(const ForwardParams& params,
                                                 const typename C::Table& table,
                                                 const T (&max)[C::Tiles::kR],
                                                 const T (&sum)[C::Tiles::kR],
                                                 const T (&output)[C::Tiles::kR][C::Tiles::kC]) {
  const core::Sizes& sizes = params.call.problem.sizes;
  const int chunk = block_index(params.value_slices, params.chunks).chunk;
  const BlockRows rows = table.rows();
  FUSED_ATTENTION_UNROLL
  for (int r = 0; r < C::Tiles::kR; ++r) {
    const T total = sum_of_exact_row(sum[r]);
    const int row = exact_row<C::Tiles::kR>(r);
    if (row >= rows.count) continue;
    const auto to = partial_of<T>(params, row_index(sizes, rows, table.place(row)), chunk);
    if (rows.first_value == 0 && exact_lane() == 0) to.store_softmax(max[r], total);
    FUSED_ATTENTION_UNROLL
    for (int c = 0; c < C::Tiles::kC; ++c) {
      const int column = rows.first_value + exact_column<T>(c);
      if (column < sizes.dim_v) store_global(to.sums + column, output[r][c]);
    }
  }
}

template <class C>
FUSED_ATTENTION_DEVICE void exact_forward_body(const ForwardParams& params) {
  using T = typename C::Element;
  using Tiles = typename C::Tiles;
  const core::Problem& problem = params.call.problem;
  const BlockIndex index = block_index(params.value_slices, params.chunks);
  if (index.item >= params.rows.heads * params.rows.blocks) return;
  const int first_value = index.slice * C::kColumns;
  const int dim_v = static_cast<int>(problem.sizes.dim_v);

  const typename C::Table table{shared_region(C::kTableOffset, C::Table::kBytes, "table")};
  const BlockRows rows =
      table.fill(problem, params.rows, index.item, first_value, {index.chunk, params.chunks});
  const BlockKeys keys = table.keys();
  const ExactRowBlock<C> block{problem, table, rows, Tiles()};

  T output[Tiles::kR][Tiles::kC] = {};
  T sum[Tiles::kR] = {};
  T max[Tiles::kR];
  FUSED_ATTENTION_UNROLL
  for (int r = 0; r < Tiles::kR; ++r) max[r] = -static_cast<T>(kInfinity);

  FUSED_ATTENTION_NO_UNROLL
  for (int tile = keys.begin; tile < keys.end; tile += C::kKeys) {
    T scores[Tiles::kR][Tiles::kN];
    if (!block.scores(tile, scores)) continue;
    FUSED_ATTENTION_UNROLL
    for (int r = 0; r < Tiles::kR; ++r) {
      const T rescale = add_exact_scores(scores[r], max[r], sum[r]);
      FUSED_ATTENTION_UNROLL
      for (int c = 0; c < Tiles::kC; ++c) output[r][c] *= rescale;
    }
    store_exact_weights(block.tiles, scores);
    const bool some_hidden = problem.mask.data != nullptr || !keys.template is_full<C::kKeys>(tile);
    add_exact_product(
        block.tiles, some_hidden,
        [&](int key) { return block.key(problem.value, tile + key, first_value, dim_v); }, output);
  }
  if (params.chunks > 1) {
    write_exact_partials<C>(params, table, max, sum, output);
  } else {
    write_exact_forward<C>(params, table, max, sum, output);
  }
}

}  // namespace fused_attention::cuda
