// dK and dV for fp32 and fp64: a block of keys over all rows of the group that see them, as
// backward_key.h has it.
#pragma once

#include "backward_exact_query.h"
#include "key_block.h"

namespace fused_attention::cuda {

template <class C>
FUSED_ATTENTION_DEVICE void exact_key_gradient_body(const BackwardParams& params);

template <class Element_, ExactTile kTile_, KeyGradients kWhich>
struct ExactKeyGradientConfig {
  using Element = Element_;
  static constexpr ExactTile kTile = kTile_;
  static constexpr bool kWantsKey = kWhich != KeyGradients::kValue;
  static constexpr bool kWantsValue = kWhich != KeyGradients::kKey;
  static constexpr int kThreads = kTile.kThreads;
  static constexpr int kRows = kTile.rows;
  static constexpr int kKeys = kTile.keys;
  static constexpr int kColumns = kTile.columns;

  using Tiles = ExactTiles<Element, kKeys, kRows, kTile.chunk, kColumns>;
  using Statistics = ExactStatistics<Element, kRows>;
  static constexpr int kStatisticsOffset = Tiles::kBytes;
  static constexpr int kPositionOffset = kStatisticsOffset + Statistics::kBytes;
  static constexpr int kSharedBytes = kPositionOffset + kRows * 4;

  using Params = BackwardParams;
  FUSED_ATTENTION_DEVICE static void run(const Params& params) {
    exact_key_gradient_body<ExactKeyGradientConfig>(params);
  }
};

/// A block of keys and its row tile.
template <class C>
struct ExactKeyBlock {
  using T = typename C::Element;
  using Tiles = typename C::Tiles;

  const BackwardParams& params;
  KeyBlock block;
  Tiles tiles;
  typename C::Statistics statistics;
  SharedPtr positions;

  FUSED_ATTENTION_DEVICE ExactSource<T> key(const core::ConstOperand& x, int key, int column,
                                            int dim) const {
    return exact_source<T>(x, key < block.count, block.offset(x, key), column, dim);
  }
  FUSED_ATTENTION_DEVICE ExactSource<T> row(const core::ConstOperand& x, std::int64_t row,
                                            int column, int dim) const {
    const bool exists = row < block.rows.count;
    return exact_source<T>(x, exists, exists ? list_offset(x, block.rows, row) : 0, column, dim);
  }

  FUSED_ATTENTION_DEVICE void load_rows(std::int64_t first) const {
    const core::Sizes& sizes = params.call.problem.sizes;
    const int row = thread_index();
    if (row >= C::kRows) return;
    ExactRowStatistics<T> x{static_cast<T>(kInfinity), 0, 0};
    int position = 0;
    if (first + row < block.rows.count) {
      const ListPlace place = block.rows.place(first + row);
      position = static_cast<int>(place.position);
      x = load_exact_statistics_of<T>(
          params.statistics,
          (block.rows.batch * sizes.heads_q + place.head) * sizes.seq_q + place.position);
    }
    statistics.store(row, x);
    store_shared(positions + row * 4, position);
  }

  /// Mask values of a row tile, where its weights will be, and whether any row sees any key. A warp
  /// takes patches of 8 keys and 4 rows, which lie in different banks.
  FUSED_ATTENTION_DEVICE bool load_mask(std::int64_t first) const {
    constexpr int kPatches = C::kKeys / 8;
    const core::DenseMask& mask = params.call.problem.mask;
    const int lane = thread_index() % kWarp;
    bool any = false;
    FUSED_ATTENTION_NO_UNROLL
    for (int patch = thread_index() / kWarp; patch < kPatches * (C::kRows / 4);
         patch += C::kThreads / kWarp) {
      const int key = patch % kPatches * 8 + lane % 8;
      const int row = patch / kPatches * 4 + lane / 8;
      T value = -static_cast<T>(kInfinity);
      if (key < block.count && first + row < block.rows.count) {
        const ListPlace place = block.rows.place(first + row);
        value = cuda::load_mask<T>(mask, core::mask_offset(mask, block.rows.batch, place.head,
                                                           place.position, block.first + key));
      }
      any |= value != -static_cast<T>(kInfinity);
      store_shared(tiles.weights().at(key, row), value);
    }
    return any;
  }

  /// Scores of a row tile, transposed: scale * score, masked.
  FUSED_ATTENTION_DEVICE void mask_scores(std::int64_t first,
                                          T (&scores)[Tiles::kR][Tiles::kN]) const {
    const core::Problem& problem = params.call.problem;
    const int lower = static_cast<int>(problem.band.lower);
    const int upper = static_cast<int>(problem.band.upper);
    FUSED_ATTENTION_UNROLL
    for (int n = 0; n < Tiles::kN; ++n) {
      const int row = exact_other(n);
      const int position = load_shared<int>(positions + row * 4);
      const bool exists = first + row < block.rows.count;
      FUSED_ATTENTION_UNROLL
      for (int r = 0; r < Tiles::kR; ++r) {
        const int own = exact_row<Tiles::kR>(r);
        const int key = block.first + own;
        T score = rounded_product(scores[r][n], static_cast<T>(problem.scale));
        if (problem.mask.data != nullptr) {
          score = add_mask(score, load_shared<T>(tiles.weights().at(own, row)));
        }
        const bool sees =
            exists && own < block.count && key >= position + lower && key <= position + upper;
        scores[r][n] = sees ? score : -static_cast<T>(kInfinity);
      }
    }
  }
};

template <class C>
FUSED_ATTENTION_DEVICE void exact_key_gradient_body(const BackwardParams& params) {
  using T = typename C::Element;
  using Tiles = typename C::Tiles;
  const core::Problem& problem = params.call.problem;
  const core::ConstOperand& query = problem.query;
  const core::ConstOperand& grad_output = params.call.grad_output;
  const BlockIndex index = block_index(params.slices);
  const std::int64_t pair = index.item / params.key_blocks;
  if (pair >= params.rows.heads) return;
  const int first_column = index.slice * C::kColumns;
  const int block_key = static_cast<int>(index.item - pair * params.key_blocks) * C::kKeys;
  const int dim_qk = static_cast<int>(problem.sizes.dim_qk);
  const int dim_v = static_cast<int>(problem.sizes.dim_v);
  const bool has_mask = problem.mask.data != nullptr;
  const ExactKeyBlock<C> x{params, key_block(problem, pair, block_key, C::kKeys, C::kRows), Tiles(),
                           shared_tile<typename C::Statistics>(C::kStatisticsOffset, "statistics"),
                           shared_region(C::kPositionOffset, C::kRows * 4, "positions")};
  const Tiles& tiles = x.tiles;

  T key_sums[Tiles::kR][C::kWantsKey ? Tiles::kC : kVector<T>] = {};
  T value_sums[Tiles::kR][C::kWantsValue ? Tiles::kC : kVector<T>] = {};
  FUSED_ATTENTION_NO_UNROLL
  for (std::int64_t first = x.block.begin; first < x.block.end; first += C::kRows) {
    block_sync();
    x.load_rows(first);
    if (has_mask && !block_any(x.load_mask(first))) continue;
    T scores[Tiles::kR][Tiles::kN];
    multiply_exact_operands(
        tiles, dim_qk, [&](int key, int column) { return x.key(problem.key, key, column, dim_qk); },
        [&](int row, int column) { return x.row(query, first + row, column, dim_qk); }, scores);
    x.mask_scores(first, scores);
    const bool some_hidden =
        has_mask || !sees_all_keys(problem, x.block, first, C::kRows, C::kKeys);
    T grads[Tiles::kR][Tiles::kN];
    if constexpr (C::kWantsKey) {
      multiply_exact_operands(
          tiles, dim_v,
          [&](int key, int column) { return x.key(problem.value, key, column, dim_v); },
          [&](int row, int column) { return x.row(grad_output, first + row, column, dim_v); },
          grads);
    }
    FUSED_ATTENTION_UNROLL
    for (int n = 0; n < Tiles::kN; ++n) {
      const auto row = x.statistics.load(exact_other(n));
      FUSED_ATTENTION_UNROLL
      for (int r = 0; r < Tiles::kR; ++r) {
        if (C::kWantsKey) grads[r][n] = exact_score_gradient(row, scores[r][n], grads[r][n]);
        if (C::kWantsValue) scores[r][n] = exact_weight(row, scores[r][n]);
      }
    }
    if constexpr (C::kWantsValue) {
      store_exact_weights(tiles, scores);
      add_exact_product(
          tiles, some_hidden,
          [&](int row) { return x.row(grad_output, first + row, first_column, dim_v); },
          value_sums);
    }
    if constexpr (C::kWantsKey) {
      if (C::kWantsValue) block_sync();  // weights and values have one tile each
      store_exact_weights(tiles, grads);
      add_exact_product(
          tiles, some_hidden,
          [&](int row) { return x.row(query, first + row, first_column, dim_qk); }, key_sums);
    }
  }
  const auto write = [&](const auto& sums, T scale, const core::Operand& to, int dim) {
    if (to.data == nullptr) return;
    T factor[Tiles::kR];
    FUSED_ATTENTION_UNROLL
    for (int r = 0; r < Tiles::kR; ++r) factor[r] = scale;
    write_exact_rows(sums, factor, to, first_column, dim,
                     [&](int key) { return x.block.target(to, key); });
  };
  if constexpr (C::kWantsKey) {
    write(key_sums, static_cast<T>(problem.scale), params.call.grad_key, dim_qk);
  }
  if constexpr (C::kWantsValue) write(value_sums, T(1), params.call.grad_value, dim_v);
}

}  // namespace fused_attention::cuda
