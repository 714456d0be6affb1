// Forward pass on tensor cores, fp16 and bf16: a block of query rows over its key tiles.
// FlashAttention-2 (Dao 2023), Algorithm 1, with the rows of a key-value head's whole group in the
// tile.
#pragma once

#include "../tile_config.h"
#include "dense_mask.h"
#include "forward_output.h"
#include "non_finite.h"
#include "product.h"
#include "softmax.h"

namespace fused_attention::cuda {

template <class C>
FUSED_ATTENTION_DEVICE void forward_body(const ForwardParams& params);

/// `kGeneral_`: dense masks, any strides, any scale.
template <class Element_, ForwardTile kTile_, bool kGeneral_>
struct ForwardConfig {
  using Element = Element_;
  static constexpr ForwardTile kTile = kTile_;
  static constexpr bool kGeneral = kGeneral_;

  static constexpr int kThreads = kTile.threads();
  static constexpr int kRows = kTile.rows;
  static constexpr int kKeys = kTile.keys;
  static constexpr int kColumns = kTile.dim_v;
  static constexpr int kWarpRows = kRows / kTile.warps();
  static constexpr int kM = kWarpRows / 16;
  static constexpr int kScoreN = kKeys / 8;
  static constexpr int kOutputN = kColumns / 8;

  using QueryTile = Tile<kRows, kTile.dim_qk>;
  using KeyTile = Tile<kKeys, kTile.dim_qk>;
  using ValueTile = Tile<kKeys, kColumns>;
  using OutputTile = Tile<kRows, kColumns>;
  using Table = BlockTable<kRows, kKeys, kThreads>;
  using Mask = MaskTile<kRows, kKeys>;
  static_assert(kWarpRows % 16 == 0);
  static_assert(OutputTile::kBytes <= QueryTile::kBytes,
                "the output leaves through the query tile");

  static constexpr int kKeyOffset = QueryTile::kBytes;
  static constexpr int kValueOffset = kKeyOffset + kTile.stages * KeyTile::kBytes;
  static constexpr int kTableOffset = kValueOffset + kTile.stages * ValueTile::kBytes;
  static constexpr int kMaskOffset = kTableOffset + Table::kBytes;
  static constexpr int kSharedBytes = kMaskOffset + (kGeneral ? Mask::kBytes : 0);

  /// The kernel.
  using Params = ForwardParams;
  FUSED_ATTENTION_DEVICE static void run(const Params& params) {
    forward_body<ForwardConfig>(params);
  }
};

template <class C>
FUSED_ATTENTION_DEVICE void forward_body(const ForwardParams& params) {
  using E = typename C::Element;
  using Table = typename C::Table;
  constexpr bool kOneStage = C::kTile.stages == 1;
  static_assert(kOneStage || C::kTile.stages == 2);
  const core::Problem& problem = params.call.problem;
  const BlockIndex index = block_index(params.value_slices, C::kGeneral ? params.chunks : 1);
  if (index.item >= params.rows.heads * params.rows.blocks) return;
  const int first_value = index.slice * C::kColumns;
  const int dim_qk = static_cast<int>(problem.sizes.dim_qk);
  const int dim_v = static_cast<int>(problem.sizes.dim_v) - first_value;
  const int seq_k = static_cast<int>(problem.sizes.seq_k);

  const auto query_tile = shared_tile<typename C::QueryTile>(0, "query");
  const auto key_tile = [](int stage) {
    return shared_tile<typename C::KeyTile>(C::kKeyOffset, "key", stage);
  };
  const auto value_tile = [](int stage) {
    return shared_tile<typename C::ValueTile>(C::kValueOffset, "value", stage);
  };
  const Table table{shared_region(C::kTableOffset, Table::kBytes, "table")};
  const typename C::Mask mask_tile{
      C::kGeneral ? shared_region(C::kMaskOffset, C::Mask::kBytes, "mask") : table.base};
  const WarpRows<Table> warp_rows{table, thread_index() / kWarp * C::kWarpRows};

  const BlockRows rows =
      table.fill(problem, params.rows, index.item, first_value,
                 C::kGeneral ? KeyChunk{index.chunk, params.chunks} : KeyChunk());
  const BlockKeys keys = table.keys();
  using Lane = CopyLane<C::kThreads>;
  const auto reader = [&](const core::ConstOperand& x, int first_column, int dim, bool in_chunks) {
    const std::int64_t head_kv = rows.first_head / core::group_size(problem.sizes);
    return RowReader<E>(x, Lane(),
                        rows.batch * x.stride_b + head_kv * x.stride_h + first_column * x.stride_d,
                        keys.begin, dim, in_chunks);
  };
  RowReader<E> key_reader = reader(problem.key, 0, dim_qk, params.key_in_chunks);
  RowReader<E> value_reader = reader(problem.value, first_value, dim_v, params.value_in_chunks);
  const auto copy_keys = [&](int tile, int stage) {
    key_reader.template copy_tile<C::kGeneral>(Lane(), key_tile(stage), seq_k - tile);
  };
  const auto copy_values = [&](int tile, int stage) {
    value_reader.template copy_tile<C::kGeneral>(Lane(), value_tile(stage), seq_k - tile);
  };

  if (keys.begin < keys.end) {
    copy_block_rows<C::kGeneral, E>(Lane(), query_tile, table, rows, problem.query, dim_qk,
                                    params.query_in_chunks);
    copy_keys(keys.begin, 0);
    if (!kOneStage) copy_values(keys.begin, 0);
    cp_async_commit();
  }

  Accumulator<C::kM, C::kOutputN> output;
  RunningSoftmax<C::kM> softmax;
  output.clear();
  softmax.clear();
  int stage = 0;
  bool has_next = keys.begin < keys.end;
  FUSED_ATTENTION_NO_UNROLL
  for (int tile = keys.begin; has_next; tile += C::kKeys) {
    // Read again for each tile, not held.
    const BlockKeys block = table.keys();
    has_next = tile + C::kKeys < block.end;
    const bool some_hidden = !block.template is_full<C::kKeys>(tile);
    const bool has_mask = C::kGeneral && problem.mask.data != nullptr;

    cp_async_wait<0>();
    if (!kOneStage && (some_hidden || has_mask)) {
      clear_own_non_finite<E>(Lane(), value_tile(stage), table);
    }
    // Where a tile is skipped, the next keys are copied to the only stage.
    static_assert(!C::kGeneral || kOneStage);
    if (has_mask) {
      const bool any = load_mask_tile<C::kThreads>(problem, table, tile, mask_tile);
      if (!block_any(any)) {
        // Nobody sees anything: the next tile's keys take the place of these.
        if (has_next) copy_keys(tile + C::kKeys, 0);
        cp_async_commit();
        value_reader.skip_rows(C::kKeys);
        continue;
      }
    } else {
      block_sync();
    }
    if (kOneStage) {
      copy_values(tile, 0);
    } else if (has_next) {
      copy_keys(tile + C::kKeys, stage ^ 1);
      copy_values(tile + C::kKeys, stage ^ 1);
    }
    cp_async_commit();

    Accumulator<C::kM, C::kScoreN> scores;
    const FragmentAddress<typename C::QueryTile, Pattern::kByRows> query_rows(query_tile,
                                                                              warp_rows.first_row);
    const FragmentAddress<typename C::KeyTile, Pattern::kByKeys> key_columns(key_tile(stage), 0);
    multiply_rows_by_rows<E, C::kTile.dim_qk>(query_rows, key_columns, scores);
    if constexpr (C::kGeneral) {
      scores.scale(params.scale);
      if (has_mask) add_mask_tile(mask_tile, warp_rows, scores);
    }
    if (some_hidden) hide_by_band(table.band(), tile, seq_k, warp_rows, scores);
    if constexpr (C::kGeneral) {
      softmax.add_tile(DifferenceExponent{}, scores, output);
    } else {
      softmax.add_tile(ScaledExponent{params.scale_log2}, scores, output);
    }
    Weights<C::kM, C::kScoreN / 2> weights;
    pack_weights<E>(scores, weights);

    if (kOneStage) {
      cp_async_wait<0>();
      if (some_hidden || has_mask) clear_own_non_finite<E>(Lane(), value_tile(0), table);
      block_sync();
      if (has_next) copy_keys(tile + C::kKeys, 0);
      cp_async_commit();
    }
    const FragmentAddress<typename C::ValueTile, Pattern::kByRows> value_rows(value_tile(stage), 0);
    multiply_weights<E>(weights, value_rows, output);
    if (!kOneStage) stage ^= 1;
  }

  if (block_any(table.has_flag())) {
    add_non_finite_values<E, C>(problem, warp_rows, output);
  }
  if constexpr (C::kGeneral) {
    if (params.chunks > 1) {
      write_partials<C>(params, warp_rows, softmax, output);
    } else {
      write_forward<C>(params, warp_rows, DifferenceExponent{}, softmax, output);
    }
  } else {
    write_forward<C>(params, warp_rows, ScaledExponent{params.scale_log2}, softmax, output);
  }
}

}  // namespace fused_attention::cuda
