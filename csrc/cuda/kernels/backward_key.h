// dK and dV on tensor cores, fp16 and bf16: a block of keys over all rows of the group that see
// them, in their order. Scores are computed transposed, so that P^T and dS^T leave the accumulators
// as operands of the sums. FlashAttention-2 (Dao 2023), Algorithm 2, by columns.
#pragma once

#include "backward_query.h"
#include "key_block.h"

namespace fused_attention::cuda {

template <class C>
FUSED_ATTENTION_DEVICE void key_gradient_body(const BackwardParams& params);

/// `kGeneral_`: dense masks, any strides, any scale.
template <class Element_, BackwardTile kTile_, KeyGradients kWhich, bool kGeneral_>
struct KeyGradientConfig {
  using Element = Element_;
  static constexpr BackwardTile kTile = kTile_;
  static constexpr bool kGeneral = kGeneral_;
  static constexpr bool kWantsKey = kWhich != KeyGradients::kValue;
  static constexpr bool kWantsValue = kWhich != KeyGradients::kKey;
  static constexpr int kRows = kTile.rows;
  static constexpr int kKeys = kTile.keys;
  static constexpr int kColumns = kTile.columns;
  static constexpr int kThreads = kKeys / 16 * kWarp;
  static constexpr int kM = 1;
  static constexpr int kScoreN = kRows / 8;
  static_assert(kTile.dim % kColumns == 0 && kColumns % kPanelColumns == 0);

  using KeyTile = Tile<kKeys, kTile.dim>;
  using SumTile = Tile<kKeys, kColumns>;
  using RowTile = Tile<kRows, kTile.dim>;
  using Mask = MaskTile<kRows, kKeys, 4>;
  using Flags = ThreadFlags;

  static constexpr int kValueOffset = KeyTile::kBytes;
  static constexpr int kQueryOffset = 2 * KeyTile::kBytes;
  static constexpr bool kInTurns = kTile.places == 1;
  static_assert(!kInTurns || (kTile.stages == 1 && kWantsKey != kWantsValue));
  static constexpr int kGradOffset =
      kInTurns ? kQueryOffset : kQueryOffset + kTile.stages * RowTile::kBytes;
  static constexpr int kStatisticsBytes = kRows * static_cast<int>(sizeof(RowStatistics));
  static constexpr int kStatisticsOffset = kGradOffset + kTile.stages * RowTile::kBytes;
  static constexpr int kFlagOffset = kStatisticsOffset + kTile.stages * kStatisticsBytes;
  static constexpr int kMaskOffset = kFlagOffset + kThreads * 4;
  static constexpr int kSharedBytes = kMaskOffset + (kGeneral ? Mask::kBytes : 0);

  using Params = BackwardParams;
  FUSED_ATTENTION_DEVICE static void run(const Params& params) {
    key_gradient_body<KeyGradientConfig>(params);
  }
};

/// P^T and dS^T of a tile from scores and dP^T, in place. `first_key`: of the warp.
template <class C>
FUSED_ATTENTION_DEVICE void finish_scores(const BackwardParams& params, SharedPtr statistics,
                                          typename C::Mask mask, int warp_key, int first_key,
                                          bool some_hidden, Accumulator<C::kM, C::kScoreN>& scores,
                                          Accumulator<C::kM, C::kScoreN>& grads) {
  const core::Problem& problem = params.call.problem;
  const auto exponent = exponent_of<C>(params);
  const int lower = static_cast<int>(problem.band.lower);
  const int upper = static_cast<int>(problem.band.upper);
  const int seq_k = static_cast<int>(problem.sizes.seq_k);
  const bool has_mask = C::kGeneral && problem.mask.data != nullptr;
  FUSED_ATTENTION_UNROLL
  for (int n = 0; n < C::kScoreN; ++n) {
    FUSED_ATTENTION_UNROLL
    for (int c = 0; c < 2; ++c) {
      const int row = n * 8 + fragment_column() + c;
      const auto x = load_shared<RowStatistics>(statistics + row * 16);
      FUSED_ATTENTION_UNROLL
      for (int half = 0; half < 2; ++half) {
        float& score = scores.value[0][n][half * 2 + c];
        float& grad = grads.value[0][n][half * 2 + c];
        if constexpr (C::kGeneral) {
          score = rounded_product(score, params.scale);
          if (has_mask) {
            score =
                add_mask(score, load_shared<float>(mask.at(row, warp_key + fragment_row(half))));
          }
        }
        if (some_hidden) {
          const int key = first_key + fragment_row(half);
          const bool sees = key >= x.position + lower && key <= x.position + upper && key < seq_k;
          score = sees ? score : -kInfinity;
        }
        const float visible = visible_weight(exponent, x, score);
        if (C::kWantsKey) grad = score_gradient(x, score, visible, grad);
        if (C::kWantsValue) score = weight_of(score, visible);
      }
    }
  }
}

template <class C>
FUSED_ATTENTION_DEVICE void key_gradient_body(const BackwardParams& params) {
  using E = typename C::Element;
  using Lane = CopyLane<C::kThreads>;
  constexpr bool kOneStage = C::kTile.stages == 1;
  constexpr bool kInTurns = C::kInTurns;
  const core::Problem& problem = params.call.problem;
  const BlockIndex index = block_index(params.slices);
  const std::int64_t pair = index.item / params.key_blocks;
  if (pair >= params.rows.heads) return;
  const int first_column = C::kColumns == C::kTile.dim ? 0 : index.slice * C::kColumns;
  const int block_key = static_cast<int>(index.item - pair * params.key_blocks) * C::kKeys;
  const KeyBlock block = key_block(problem, pair, block_key, C::kKeys, C::kRows);
  const int dim_qk = static_cast<int>(problem.sizes.dim_qk);
  const int dim_v = static_cast<int>(problem.sizes.dim_v);
  const bool has_mask = C::kGeneral && problem.mask.data != nullptr;

  const auto key_tile = shared_tile<typename C::KeyTile>(0, "key");
  const auto value_tile = shared_tile<typename C::KeyTile>(C::kValueOffset, "value");
  const auto query_tile = [](int stage) {
    return shared_tile<typename C::RowTile>(C::kQueryOffset, "query", stage);
  };
  const auto grad_tile = [](int stage) {
    return shared_tile<typename C::RowTile>(C::kGradOffset, "grad", stage);
  };
  const auto statistics = [&](int stage) {
    return shared_region(C::kStatisticsOffset + stage * C::kStatisticsBytes, C::kStatisticsBytes,
                         "statistics");
  };
  const typename C::Flags flags{shared_region(C::kFlagOffset, C::kThreads * 4, "flags")};
  const typename C::Mask mask_tile{
      C::kGeneral ? shared_region(C::kMaskOffset, C::Mask::kBytes, "mask") : flags.base};
  const int warp_key = thread_index() / kWarp * 16;
  flags.clear();

  const auto copy_keys = [&](auto tile, const core::ConstOperand& x, int dim) {
    copy_rows<C::kGeneral, E>(Lane(), tile, x, block.count, dim, params.in_chunks,
                              [&](int row) { return block.offset(x, row); });
  };
  const auto copy_list = [&](auto tile, const core::ConstOperand& x, int dim, std::int64_t first) {
    const auto count = static_cast<int>(core::min64(C::kRows, block.rows.count - first));
    copy_rows<C::kGeneral, E>(Lane(), tile, x, count, dim, params.in_chunks,
                              [&](int row) { return list_offset(x, block.rows, first + row); });
  };
  const auto copy_row_tile = [&](std::int64_t first, int stage) {
    copy_list(query_tile(stage), problem.query, dim_qk, first);
    if (!kInTurns) copy_list(grad_tile(stage), params.call.grad_output, dim_v, first);
    cp_async_commit();
    load_row_statistics<C::kRows, C::kThreads>(params, block.rows, first, statistics(stage));
  };
  // Puts rows of Q or dO in the place of the other, once all threads are done with it.
  const auto take_turn = [&](const core::ConstOperand& x, int dim, std::int64_t first) {
    block_sync();
    copy_list(query_tile(0), x, dim, first);
    cp_async_commit();
    cp_async_wait<0>();
  };

  Accumulator<C::kM, C::kWantsKey ? C::kColumns / 8 : 1> key_sums;
  Accumulator<C::kM, C::kWantsValue ? C::kColumns / 8 : 1> value_sums;
  key_sums.clear();
  value_sums.clear();
  if (block.begin < block.end) {
    copy_keys(key_tile, problem.key, dim_qk);
    if (C::kWantsKey) copy_keys(value_tile, problem.value, dim_v);
    copy_row_tile(block.begin, 0);
  }
  int stage = 0;
  FUSED_ATTENTION_NO_UNROLL
  for (std::int64_t first = block.begin; first < block.end; first += C::kRows) {
    const bool has_next = first + C::kRows < block.end;
    const bool some_hidden = !sees_all_keys(problem, block, first, C::kRows, C::kKeys);

    cp_async_wait<0>();
    if (some_hidden || has_mask) {
      // Inf and NaN must not meet a weight or gradient of 0. Rows of a query that is not finite
      // have an LSE of NaN, which reaches all that they see; for dO there is a pass at the end.
      if (C::kWantsKey) clear_own_non_finite<E>(Lane(), query_tile(stage), NoFlags());
      if (C::kWantsValue && !kInTurns) {
        clear_own_non_finite<E>(Lane(), grad_tile(stage), flags);
      }
    }
    bool any = true;
    if (has_mask) {
      any = block_any(load_mask_for_keys<C::kThreads>(problem, block, first, block_key, mask_tile));
    } else {
      block_sync();
    }
    if (!kOneStage && has_next) copy_row_tile(first + C::kRows, stage ^ 1);
    if (any) {
      Accumulator<C::kM, C::kScoreN> scores;
      Accumulator<C::kM, C::kScoreN> grads;
      const FragmentAddress<typename C::KeyTile, Pattern::kByRows> keys(key_tile, warp_key);
      const FragmentAddress<typename C::RowTile, Pattern::kByKeys> queries(query_tile(stage), 0);
      multiply_rows_by_rows<E, C::kTile.dim>(keys, queries, scores);
      if constexpr (kInTurns) {
        take_turn(params.call.grad_output, dim_v, first);
        if (C::kWantsValue && (some_hidden || has_mask)) {
          clear_own_non_finite<E>(Lane(), grad_tile(0), flags);
        }
        block_sync();
      }
      if constexpr (C::kWantsKey) {
        const FragmentAddress<typename C::KeyTile, Pattern::kByRows> values(value_tile, warp_key);
        const FragmentAddress<typename C::RowTile, Pattern::kByKeys> columns(grad_tile(stage), 0);
        multiply_rows_by_rows<E, C::kTile.dim>(values, columns, grads);
      }
      finish_scores<C>(params, statistics(stage), mask_tile, warp_key, block_key + warp_key,
                       some_hidden, scores, grads);
      Weights<C::kM, C::kScoreN / 2> weights;
      if constexpr (C::kWantsValue) {
        pack_weights<E>(scores, weights);
        const FragmentAddress<typename C::RowTile, Pattern::kByRows> rows(
            grad_tile(stage).from_column(first_column), 0);
        multiply_weights<E>(weights, rows, value_sums);
      }
      if constexpr (C::kWantsKey) {
        if constexpr (kInTurns) {
          take_turn(problem.query, dim_qk, first);
          if (some_hidden || has_mask) {
            clear_own_non_finite<E>(Lane(), query_tile(0), NoFlags());
          }
          block_sync();
        }
        pack_weights<E>(grads, weights);
        const FragmentAddress<typename C::RowTile, Pattern::kByRows> rows(
            query_tile(stage).from_column(first_column), 0);
        multiply_weights<E>(weights, rows, key_sums);
      }
    }
    if (kOneStage) {
      block_sync();
      if (has_next) copy_row_tile(first + C::kRows, 0);
    } else {
      if (has_mask) block_sync();  // the mask's tile has one stage
      stage ^= 1;
    }
  }

  if (C::kWantsValue && block_any(flags.has_flag())) {
    add_non_finite_grads<E, C>(params, block, warp_key, first_column, value_sums);
  }
  const auto write = [&](const auto& sums, float scale, int offset, const core::Operand& to,
                         int dim) {
    if (to.data == nullptr) return;
    const float factor[1][2] = {{scale, scale}};
    const auto tile = shared_tile<typename C::SumTile>(offset, "sums");
    write_rows<C::kGeneral, E>(sums, factor, tile, warp_key, to, first_column, dim - first_column,
                               params.in_chunks, [&](int row) { return block.target(to, row); });
  };
  if constexpr (C::kWantsKey) {
    write(key_sums, params.scale, 0, params.call.grad_key, dim_qk);
  }
  if constexpr (C::kWantsValue) {
    write(value_sums, 1.0F, C::kWantsKey ? C::kValueOffset : 0, params.call.grad_value, dim_v);
  }
}

}  // namespace fused_attention::cuda
