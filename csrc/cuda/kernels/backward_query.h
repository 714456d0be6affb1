// dQ on tensor cores, fp16 and bf16: a block of query rows over its key tiles. FlashAttention-2
// (Dao 2023), Algorithm 2, by rows: nothing is added to memory by several blocks, so results do not
// depend on their order. It also leaves, for the kernel of dK and dV, what rebuilds the weights of
// each row.
#pragma once

#include "../../core/online_softmax.h"
#include "../tile_config.h"
#include "backward_scores.h"
#include "backward_statistics.h"
#include "dense_mask.h"
#include "forward_output.h"
#include "non_finite.h"
#include "product.h"
#include "softmax.h"

namespace fused_attention::cuda {

template <class C>
FUSED_ATTENTION_DEVICE void query_gradient_body(const BackwardParams& params);

/// `kGeneral_`: dense masks, any strides, any scale.
template <class Element_, BackwardTile kTile_, bool kGeneral_>
struct QueryGradientConfig {
  using Element = Element_;
  static constexpr BackwardTile kTile = kTile_;
  static constexpr bool kGeneral = kGeneral_;
  static constexpr int kRows = kTile.rows;
  static constexpr int kKeys = kTile.keys;
  static constexpr int kColumns = kTile.columns;
  static constexpr int kThreads = kRows / 16 * kWarp;
  static constexpr int kM = 1;
  static constexpr int kScoreN = kKeys / 8;
  static_assert(kTile.dim % kColumns == 0 && kColumns % kPanelColumns == 0);

  using RowTile = Tile<kRows, kTile.dim>;
  using SumTile = Tile<kRows, kColumns>;
  using KeyTile = Tile<kKeys, kTile.dim>;
  using Table = BlockTable<kRows, kKeys, kThreads>;
  using Mask = MaskTile<kRows, kKeys>;

  static constexpr int kGradOffset = RowTile::kBytes;
  static constexpr int kKeyOffset = 2 * RowTile::kBytes;
  static constexpr bool kInTurns = kTile.places == 1;
  static_assert(!kInTurns || kTile.stages == 1);
  static constexpr int kValueOffset =
      kInTurns ? kKeyOffset : kKeyOffset + kTile.stages * KeyTile::kBytes;
  static constexpr int kTableOffset = kValueOffset + kTile.stages * KeyTile::kBytes;
  static constexpr int kStatisticsOffset = (kTableOffset + Table::kBytes + 15) / 16 * 16;
  static constexpr int kStatisticsBytes = kRows * static_cast<int>(sizeof(RowStatistics));
  static constexpr int kMaskOffset = kStatisticsOffset + kStatisticsBytes;
  static constexpr int kSharedBytes = kMaskOffset + (kGeneral ? Mask::kBytes : 0);

  using Params = BackwardParams;
  FUSED_ATTENTION_DEVICE static void run(const Params& params) {
    query_gradient_body<QueryGradientConfig>(params);
  }
};

template <class C>
FUSED_ATTENTION_DEVICE void query_gradient_body(const BackwardParams& params) {
  using E = typename C::Element;
  using Table = typename C::Table;
  using Lane = CopyLane<C::kThreads>;
  constexpr bool kOneStage = C::kTile.stages == 1;
  constexpr bool kInTurns = C::kInTurns;
  const core::Problem& problem = params.call.problem;
  const BlockIndex index = block_index(params.slices);
  if (index.item >= params.rows.heads * params.rows.blocks) return;
  const int first_column = C::kColumns == C::kTile.dim ? 0 : index.slice * C::kColumns;
  const int dim_qk = static_cast<int>(problem.sizes.dim_qk);
  const int dim_v = static_cast<int>(problem.sizes.dim_v);
  const int seq_k = static_cast<int>(problem.sizes.seq_k);
  const bool has_mask = C::kGeneral && problem.mask.data != nullptr;
  const auto exponent = exponent_of<C>(params);

  const auto query_tile = shared_tile<typename C::RowTile>(0, "query");
  const auto grad_tile = shared_tile<typename C::RowTile>(C::kGradOffset, "grad");
  const auto key_tile = [](int stage) {
    return shared_tile<typename C::KeyTile>(C::kKeyOffset, "key", stage);
  };
  const auto value_tile = [](int stage) {
    return shared_tile<typename C::KeyTile>(C::kValueOffset, "value", stage);
  };
  const Table table{shared_region(C::kTableOffset, Table::kBytes, "table")};
  const SharedPtr statistics =
      shared_region(C::kStatisticsOffset, C::kStatisticsBytes, "statistics");
  const typename C::Mask mask_tile{
      C::kGeneral ? shared_region(C::kMaskOffset, C::Mask::kBytes, "mask") : table.base};
  const WarpRows<Table> warp_rows{table, thread_index() / kWarp * 16};

  const BlockRows rows = table.fill(problem, params.rows, index.item, 0);
  const BlockKeys keys = table.keys();
  const std::int64_t head_kv = rows.first_head / core::group_size(problem.sizes);
  const auto reader = [&](const core::ConstOperand& x, int dim, int first_key) {
    return RowReader<E>(x, Lane(), rows.batch * x.stride_b + head_kv * x.stride_h, first_key, dim,
                        params.in_chunks);
  };
  if (keys.begin < keys.end) {
    copy_block_rows<C::kGeneral, E>(Lane(), query_tile, table, rows, problem.query, dim_qk,
                                    params.in_chunks);
    copy_block_rows<C::kGeneral, E>(Lane(), grad_tile, table, rows, params.call.grad_output, dim_v,
                                    params.in_chunks);
    cp_async_commit();
  }
  const bool coarse = load_statistics<C>(params, table, warp_rows.first_row, statistics);

  // Scores of the tile in `stage`, masked.
  Accumulator<C::kM, C::kScoreN> scores;
  const auto score_tile = [&](int tile, int stage, bool some_hidden) {
    const FragmentAddress<typename C::RowTile, Pattern::kByRows> queries(query_tile,
                                                                         warp_rows.first_row);
    const FragmentAddress<typename C::KeyTile, Pattern::kByKeys> columns(key_tile(stage), 0);
    multiply_rows_by_rows<E, C::kTile.dim>(queries, columns, scores);
    if constexpr (C::kGeneral) {
      scores.scale(params.scale);
      if (has_mask) add_mask_tile(mask_tile, warp_rows, scores);
    }
    if (some_hidden) hide_by_band(table.band(), tile, seq_k, warp_rows, scores);
  };

  if (block_any(coarse)) {
    // m and l of their own for such rows; a rare pass over the keys.
    RunningSoftmax<C::kM> softmax;
    Accumulator<C::kM, 1> nothing;
    softmax.clear();
    nothing.clear();
    RowReader<E> key_reader = reader(problem.key, dim_qk, keys.begin);
    FUSED_ATTENTION_NO_UNROLL
    for (int tile = keys.begin; tile < keys.end; tile += C::kKeys) {
      key_reader.template copy_tile<C::kGeneral>(Lane(), key_tile(0), seq_k - tile);
      if (has_mask) load_mask_tile<C::kThreads>(problem, table, tile, mask_tile);
      cp_async_commit();
      cp_async_wait<0>();
      block_sync();
      score_tile(tile, 0, !table.keys().template is_full<C::kKeys>(tile));
      softmax.add_tile(exponent, scores, nothing);
      block_sync();
    }
    FUSED_ATTENTION_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_row(softmax.sum[0][half]);
      const int row = warp_rows.row(0, half);
      if (fragment_column() == 0 && row < rows.count) {
        const GlobalPtr<const float> lse(static_cast<const float*>(params.call.logsumexp));
        const float logsumexp =
            load_global<float>(lse + row_index(problem.sizes, rows, table.place(row)));
        if (core::logsumexp_is_coarse(logsumexp)) {
          store_shared(statistics + row * 16,
                       Pack<float, 2>{{exponent.shift_of(softmax.max[0][half]), 1.0F / sum}});
        }
      }
    }
    block_sync();
  }
  if (first_column == 0) {
    const GlobalPtr<RowStatistics> to(static_cast<RowStatistics*>(params.statistics));
    for (int row = thread_index(); row < rows.count; row += C::kThreads) {
      store_global(to + row_index(problem.sizes, rows, table.place(row)),
                   load_shared<RowStatistics>(statistics + row * 16));
    }
  }
  if (params.call.grad_query.data == nullptr) {
    cp_async_wait<0>();
    return;
  }

  Accumulator<C::kM, C::kColumns / 8> sums;
  sums.clear();
  RowReader<E> key_reader = reader(problem.key, dim_qk, keys.begin);
  RowReader<E> value_reader = reader(problem.value, dim_v, keys.begin);
  const auto copy_tiles = [&](int tile, int stage) {
    key_reader.template copy_tile<C::kGeneral>(Lane(), key_tile(stage), seq_k - tile);
    if (!kInTurns) {
      value_reader.template copy_tile<C::kGeneral>(Lane(), value_tile(stage), seq_k - tile);
    }
    cp_async_commit();
  };
  // Puts rows of K or V in the place of the other, once all threads are done with it.
  const auto take_turn = [&](const core::ConstOperand& x, int dim, int tile) {
    block_sync();
    reader(x, dim, tile).template copy_tile<C::kGeneral>(Lane(), key_tile(0), seq_k - tile);
    cp_async_commit();
    cp_async_wait<0>();
  };
  bool has_next = keys.begin < keys.end;
  if (has_next) copy_tiles(keys.begin, 0);
  int stage = 0;
  FUSED_ATTENTION_NO_UNROLL
  for (int tile = keys.begin; has_next; tile += C::kKeys) {
    const BlockKeys block = table.keys();
    has_next = tile + C::kKeys < block.end;
    const bool some_hidden = !block.template is_full<C::kKeys>(tile);

    cp_async_wait<0>();
    // Inf and NaN of K must not meet a gradient of 0. Rows that see one have an LSE of NaN.
    if (some_hidden || has_mask) clear_own_non_finite<E>(Lane(), key_tile(stage), table);
    bool any = true;
    if (has_mask) {
      any = block_any(load_mask_tile<C::kThreads>(problem, table, tile, mask_tile));
    } else {
      block_sync();
    }
    if (!kOneStage && has_next) copy_tiles(tile + C::kKeys, stage ^ 1);
    if (any) {
      score_tile(tile, stage, some_hidden);
      if constexpr (kInTurns) {
        take_turn(problem.value, dim_v, tile);
        block_sync();
      }
      Accumulator<C::kM, C::kScoreN> grads;
      const FragmentAddress<typename C::RowTile, Pattern::kByRows> grad_rows(grad_tile,
                                                                             warp_rows.first_row);
      const FragmentAddress<typename C::KeyTile, Pattern::kByKeys> values(value_tile(stage), 0);
      multiply_rows_by_rows<E, C::kTile.dim>(grad_rows, values, grads);
      FUSED_ATTENTION_UNROLL
      for (int half = 0; half < 2; ++half) {
        const auto row = load_shared<RowStatistics>(statistics + warp_rows.row(0, half) * 16);
        FUSED_ATTENTION_UNROLL
        for (int n = 0; n < C::kScoreN; ++n) {
          FUSED_ATTENTION_UNROLL
          for (int i = half * 2; i < half * 2 + 2; ++i) {
            const float score = scores.value[0][n][i];
            grads.value[0][n][i] = score_gradient(row, score, visible_weight(exponent, row, score),
                                                  grads.value[0][n][i]);
          }
        }
      }
      if constexpr (kInTurns) {
        take_turn(problem.key, dim_qk, tile);
        if (some_hidden || has_mask) clear_own_non_finite<E>(Lane(), key_tile(0), table);
        block_sync();
      }
      Weights<C::kM, C::kScoreN / 2> weights;
      pack_weights<E>(grads, weights);
      const FragmentAddress<typename C::KeyTile, Pattern::kByRows> key_rows(
          key_tile(stage).from_column(first_column), 0);
      multiply_weights<E>(weights, key_rows, sums);
    }
    if (kOneStage) {
      block_sync();
      if (has_next) copy_tiles(tile + C::kKeys, 0);
    } else {
      // The mask's tile has one stage.
      if (has_mask) block_sync();
      stage ^= 1;
    }
  }
  const float factor[1][2] = {{params.scale, params.scale}};
  const core::Operand& to = params.call.grad_query;
  write_rows<C::kGeneral, E>(sums, factor, shared_tile<typename C::SumTile>(0, "sums"),
                             warp_rows.first_row, to, first_column, dim_qk - first_column,
                             params.in_chunks, BlockTarget<Table>{table, to});
}

}  // namespace fused_attention::cuda
