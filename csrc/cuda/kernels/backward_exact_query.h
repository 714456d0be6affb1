// dQ for fp32 and fp64: a block of query rows over its key tiles, as backward_query.h has it, with
// the products of forward_exact.h. It also leaves what rebuilds the weights of each row.
#pragma once

#include "../../core/online_softmax.h"
#include "exact_backward.h"
#include "exact_scores.h"
#include "params.h"

namespace fused_attention::cuda {

template <class C>
FUSED_ATTENTION_DEVICE void exact_query_gradient_body(const BackwardParams& params);

template <class Element_, ExactTile kTile_>
struct ExactQueryGradientConfig {
  using Element = Element_;
  static constexpr ExactTile kTile = kTile_;
  static constexpr int kThreads = kTile.kThreads;
  static constexpr int kRows = kTile.rows;
  static constexpr int kKeys = kTile.keys;
  static constexpr int kColumns = kTile.columns;

  using Table = BlockTable<kRows, kKeys, kThreads>;
  using Tiles = ExactTiles<Element, kRows, kKeys, kTile.chunk, kColumns>;
  using Statistics = ExactStatistics<Element, kRows>;
  static constexpr int kTableOffset = Tiles::kBytes;
  static constexpr int kStatisticsOffset = (kTableOffset + Table::kBytes + 15) / 16 * 16;
  static constexpr int kSharedBytes = kStatisticsOffset + Statistics::kBytes;

  using Params = BackwardParams;
  FUSED_ATTENTION_DEVICE static void run(const Params& params) {
    exact_query_gradient_body<ExactQueryGradientConfig>(params);
  }
};

/// delta and, from LSE, shift and factor of each row of the block, by the threads that share it.
/// Returns whether the calling thread found an LSE that is too coarse to rebuild weights from.
template <class C>
FUSED_ATTENTION_DEVICE bool load_exact_statistics(const BackwardParams& params,
                                                  const ExactRowBlock<C>& block,
                                                  const typename C::Statistics& statistics) {
  using T = typename C::Element;
  const core::Sizes& sizes = params.call.problem.sizes;
  const int dim_v = static_cast<int>(sizes.dim_v);
  bool coarse = false;
  FUSED_ATTENTION_NO_UNROLL
  for (int r = 0; r < C::Tiles::kR; ++r) {
    const int row = exact_row<C::Tiles::kR>(r);
    const ExactSource<T> output = block.row(params.call.output, row, 0, dim_v);
    const ExactSource<T> grad = block.row(params.call.grad_output, row, 0, dim_v);
    T delta = 0;
    FUSED_ATTENTION_NO_UNROLL
    for (int column = exact_lane(); column < output.count; column += ExactTile::kLanes) {
      delta = fused_multiply_add(load_global<T>(output.from + column * output.stride_d),
                                 load_global<T>(grad.from + column * grad.stride_d), delta);
    }
    delta = sum_of_exact_row(delta);
    ExactRowStatistics<T> result{static_cast<T>(kInfinity), 0, 0};
    if (row < block.rows.count) {
      const std::int64_t index = row_index(sizes, block.rows, block.table.place(row));
      const GlobalPtr<const T> lse(static_cast<const T*>(params.call.logsumexp));
      const GlobalPtr<const T> grad_lse(static_cast<const T*>(params.call.grad_logsumexp));
      const T logsumexp = load_global<T>(lse + index);
      // A row that sees nothing keeps shift = inf: all its weights are 0.
      if (logsumexp != -static_cast<T>(kInfinity)) result = {logsumexp, 1, 0};
      result.delta = grad_lse ? delta - load_global<T>(grad_lse + index) : delta;
      coarse |= core::logsumexp_is_coarse(logsumexp);
    }
    if (exact_lane() == 0) statistics.store(row, result);
  }
  return coarse;
}

/// m and l of their own for the rows whose LSE is too coarse; a rare pass over the keys.
template <class C>
FUSED_ATTENTION_DEVICE void refine_exact_statistics(const BackwardParams& params,
                                                    const ExactRowBlock<C>& block,
                                                    const typename C::Statistics& statistics) {
  using T = typename C::Element;
  constexpr int kR = C::Tiles::kR;
  const BlockKeys keys = block.table.keys();
  T sum[kR] = {};
  T max[kR];
  FUSED_ATTENTION_UNROLL
  for (int r = 0; r < kR; ++r) max[r] = -static_cast<T>(kInfinity);
  FUSED_ATTENTION_NO_UNROLL
  for (int tile = keys.begin; tile < keys.end; tile += C::kKeys) {
    T scores[kR][C::Tiles::kN];
    if (!block.scores(tile, scores)) continue;
    FUSED_ATTENTION_UNROLL
    for (int r = 0; r < kR; ++r) add_exact_scores(scores[r], max[r], sum[r]);
  }
  const GlobalPtr<const T> lse(static_cast<const T*>(params.call.logsumexp));
  FUSED_ATTENTION_UNROLL
  for (int r = 0; r < kR; ++r) {
    const T total = sum_of_exact_row(sum[r]);
    const int row = exact_row<kR>(r);
    if (exact_lane() == 0 && row < block.rows.count) {
      const RowPlace place = block.table.place(row);
      const std::int64_t index = row_index(params.call.problem.sizes, block.rows, place);
      if (core::logsumexp_is_coarse(load_global<T>(lse + index))) {
        statistics.store_weight(row, max[r], 1 / total);
      }
    }
  }
}

template <class C>
FUSED_ATTENTION_DEVICE void exact_query_gradient_body(const BackwardParams& params) {
  using T = typename C::Element;
  using Tiles = typename C::Tiles;
  const core::Problem& problem = params.call.problem;
  const BlockIndex index = block_index(params.slices);
  if (index.item >= params.rows.heads * params.rows.blocks) return;
  const int first_column = index.slice * C::kColumns;
  const int dim_qk = static_cast<int>(problem.sizes.dim_qk);
  const int dim_v = static_cast<int>(problem.sizes.dim_v);

  const typename C::Table table{shared_region(C::kTableOffset, C::Table::kBytes, "table")};
  const auto statistics = shared_tile<typename C::Statistics>(C::kStatisticsOffset, "statistics");
  const BlockRows rows = table.fill(problem, params.rows, index.item, first_column);
  const BlockKeys keys = table.keys();
  const ExactRowBlock<C> block{problem, table, rows, Tiles()};

  if (block_any(load_exact_statistics<C>(params, block, statistics))) {
    refine_exact_statistics<C>(params, block, statistics);
    block_sync();
  }
  if (first_column == 0) {
    for (int row = thread_index(); row < rows.count; row += C::kThreads) {
      store_exact_statistics<T>(params.statistics, row_index(problem.sizes, rows, table.place(row)),
                                statistics.load(row));
    }
  }
  const core::Operand& to = params.call.grad_query;
  if (to.data == nullptr) return;

  T sums[Tiles::kR][Tiles::kC] = {};
  FUSED_ATTENTION_NO_UNROLL
  for (int tile = keys.begin; tile < keys.end; tile += C::kKeys) {
    T scores[Tiles::kR][Tiles::kN];
    if (!block.scores(tile, scores)) continue;
    T grads[Tiles::kR][Tiles::kN];
    multiply_exact_operands(
        block.tiles, dim_v,
        [&](int row, int column) { return block.row(params.call.grad_output, row, column, dim_v); },
        [&](int key, int column) { return block.key(problem.value, tile + key, column, dim_v); },
        grads);
    FUSED_ATTENTION_UNROLL
    for (int r = 0; r < Tiles::kR; ++r) {
      const auto x = statistics.load(exact_row<Tiles::kR>(r));
      FUSED_ATTENTION_UNROLL
      for (int n = 0; n < Tiles::kN; ++n) {
        grads[r][n] = exact_score_gradient(x, scores[r][n], grads[r][n]);
      }
    }
    store_exact_weights(block.tiles, grads);
    const bool some_hidden = problem.mask.data != nullptr || !keys.template is_full<C::kKeys>(tile);
    add_exact_product(
        block.tiles, some_hidden,
        [&](int key) { return block.key(problem.key, tile + key, first_column, dim_qk); }, sums);
  }
  T factor[Tiles::kR];
  FUSED_ATTENTION_UNROLL
  for (int r = 0; r < Tiles::kR; ++r) factor[r] = static_cast<T>(problem.scale);
  write_exact_rows(sums, factor, to, first_column, dim_qk,
                   BlockTarget<typename C::Table>{table, to});
}

}  // namespace fused_attention::cuda
