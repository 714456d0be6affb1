// Forward pass for fp32 and fp64: every product is a fused multiply-add of the type itself. Tiles
// go through shared memory; each thread keeps a rectangle of the scores and of the output in
// registers.
#pragma once

#include "../tile_config.h"
#include "block.h"
#include "dense_mask.h"
#include "exact_product.h"
#include "params.h"

namespace fused_attention::cuda {

template <class C>
FUSED_ATTENTION_DEVICE void exact_forward_body(const ForwardParams& params);

template <class Element_, ExactTile kTile_>
struct ExactForwardConfig {
  using Element = Element_;
  static constexpr ExactTile kTile = kTile_;
  static constexpr int kThreads = kTile.threads();
  static constexpr int kRows = kTile.rows;
  static constexpr int kKeys = kTile.keys;
  static constexpr int kR = kRows / ExactTile::kLanes;        // rows of a thread
  static constexpr int kN = kKeys / ExactTile::kLanes;        // keys
  static constexpr int kC = kTile.dim_v / ExactTile::kLanes;  // output columns

  using Table = BlockTable<kRows, kKeys, kThreads>;
  using QueryTile = ExactRows<Element, kRows, kTile.chunk>;
  using KeyTile = ExactRows<Element, kKeys, kTile.chunk>;
  using WeightTile = ExactRows<Element, kRows, kKeys>;
  using ValueTile = ExactRows<Element, kKeys, kTile.dim_v>;
  static constexpr int kKeyOffset = QueryTile::kBytes;
  static constexpr int kWeightOffset = kKeyOffset + KeyTile::kBytes;
  static constexpr int kValueOffset = kWeightOffset + WeightTile::kBytes;
  static constexpr int kTableOffset = kValueOffset + ValueTile::kBytes;
  static constexpr int kSharedBytes = kTableOffset + Table::kBytes;

  /// The kernel.
  using Params = ForwardParams;
  FUSED_ATTENTION_DEVICE static void run(const Params& params) {
    exact_forward_body<ExactForwardConfig>(params);
  }
};

/// Mask values of a tile, where its weights will be. Returns whether any row sees any key, as far
/// as the calling thread has looked.
template <class C>
FUSED_ATTENTION_DEVICE bool load_exact_mask(const core::Problem& problem,
                                            const typename C::Table& table, const BlockRows& rows,
                                            int tile, const typename C::WeightTile& to) {
  using T = typename C::Element;
  const int key = thread_index() % C::kKeys;
  const bool exists = tile + key < problem.sizes.seq_k;
  bool any = false;
  FUSED_ATTENTION_NO_UNROLL
  for (int row = thread_index() / C::kKeys; row < C::kRows; row += C::kThreads / C::kKeys) {
    T value = -static_cast<T>(kInfinity);
    if (exists && row < rows.count) {
      const RowPlace place = table.place(row);
      value = load_mask<T>(problem.mask,
                           core::mask_offset(problem.mask, rows.batch, rows.first_head + place.head,
                                             rows.first_position + place.position, tile + key));
    }
    any |= value != -static_cast<T>(kInfinity);
    store_shared(to.at(row, key), value);
  }
  return any;
}

/// scale * score, masked, of a thread's rectangle.
template <class C, class T>
FUSED_ATTENTION_DEVICE void mask_exact_scores(const core::Problem& problem,
                                              const typename C::Table& table, int tile,
                                              const typename C::WeightTile& mask,
                                              T (&scores)[C::kR][C::kN]) {
  const BlockBand band = table.band();
  const int seq_k = static_cast<int>(problem.sizes.seq_k);
  FUSED_ATTENTION_UNROLL
  for (int r = 0; r < C::kR; ++r) {
    const int row = exact_row<C::kR>(r);
    const int position = table.position(row);
    FUSED_ATTENTION_UNROLL
    for (int n = 0; n < C::kN; ++n) {
      const int key = exact_lane() + n * ExactTile::kLanes;
      T score = scores[r][n] * static_cast<T>(problem.scale);
      if (problem.mask.data != nullptr) score = add_mask(score, load_shared<T>(mask.at(row, key)));
      const bool sees = tile + key < seq_k && band.sees(position, tile + key);
      scores[r][n] = sees ? score : -static_cast<T>(kInfinity);
    }
  }
}

/// The online softmax of core/online_softmax.h: scores become weights, which are stored for the
/// product. A hidden key's weight is -0, which no exponential is.
template <class C, class T>
FUSED_ATTENTION_DEVICE void exact_softmax(const typename C::WeightTile& weights,
                                          T (&scores)[C::kR][C::kN], T (&max)[C::kR],
                                          T (&sum)[C::kR], T (&output)[C::kR][C::kC]) {
  constexpr T kMinusInfinity = -static_cast<T>(kInfinity);
  FUSED_ATTENTION_UNROLL
  for (int r = 0; r < C::kR; ++r) {
    T largest = max[r];
    FUSED_ATTENTION_UNROLL
    for (int n = 0; n < C::kN; ++n) largest = maximum(largest, scores[r][n]);
    FUSED_ATTENTION_UNROLL
    for (int mask = 1; mask < ExactTile::kLanes; mask *= 2) {
      largest = maximum(largest, shuffle_xor(largest, mask));
    }
    const T shift = largest == kMinusInfinity ? T(0) : largest;
    const T rescale = exponential(max[r] - shift);
    max[r] = largest;
    sum[r] *= rescale;
    FUSED_ATTENTION_UNROLL
    for (int n = 0; n < C::kN; ++n) {
      const T score = scores[r][n];
      const T weight = score == kMinusInfinity ? -T(0) : exponential(score - shift);
      sum[r] += weight;
      store_shared(weights.at(exact_row<C::kR>(r), exact_lane() + n * ExactTile::kLanes), weight);
    }
    FUSED_ATTENTION_UNROLL
    for (int c = 0; c < C::kC; ++c) output[r][c] *= rescale;
  }
}

template <class C, class T>
FUSED_ATTENTION_DEVICE void write_exact_forward(const ForwardParams& params,
                                                const typename C::Table& table,
                                                const T (&max)[C::kR], const T (&sum)[C::kR],
                                                const T (&output)[C::kR][C::kC]) {
  const core::Sizes& sizes = params.call.problem.sizes;
  const core::Operand& to = params.call.output;
  const BlockRows rows = table.rows();
  FUSED_ATTENTION_UNROLL
  for (int r = 0; r < C::kR; ++r) {
    T total = sum[r];
    FUSED_ATTENTION_UNROLL
    for (int mask = 1; mask < ExactTile::kLanes; mask *= 2) total += shuffle_xor(total, mask);
    const int row = exact_row<C::kR>(r);
    if (row >= rows.count) continue;
    const RowPlace place = table.place(row);
    const T factor = total == 0 ? T(0) : T(1) / total;
    const GlobalPtr<T> at = GlobalPtr<T>(static_cast<T*>(to.data)) + row_offset(to, rows, place);
    FUSED_ATTENTION_UNROLL
    for (int c = 0; c < C::kC; ++c) {
      const int column = rows.first_value + exact_column<T>(c);
      if (column < sizes.dim_v) store_global(at + column * to.stride_d, output[r][c] * factor);
    }
    if (rows.first_value == 0 && exact_lane() == 0) {
      const GlobalPtr<T> lse(static_cast<T*>(params.call.logsumexp));
      store_global(
          lse + ((rows.batch * sizes.heads_q + rows.first_head + place.head) * sizes.seq_q +
                 rows.first_position + place.position),
          total == 0 ? -static_cast<T>(kInfinity) : max[r] + logarithm(total));
    }
  }
}

template <class C>
FUSED_ATTENTION_DEVICE void exact_forward_body(const ForwardParams& params) {
  using T = typename C::Element;
  const core::Problem& problem = params.call.problem;
  const std::int64_t index = linear_block_index();
  const std::int64_t row_block = params.value_slices == 1 ? index : index / params.value_slices;
  if (row_block >= params.rows.heads * params.rows.blocks) return;
  const int first_value =
      static_cast<int>(index - row_block * params.value_slices) * C::kTile.dim_v;
  const int dim_qk = static_cast<int>(problem.sizes.dim_qk);
  const int dim_v = static_cast<int>(problem.sizes.dim_v) - first_value;
  const int seq_k = static_cast<int>(problem.sizes.seq_k);

  const typename C::QueryTile query_tile{shared_region(0, C::QueryTile::kBytes, "query")};
  const typename C::KeyTile key_tile{shared_region(C::kKeyOffset, C::KeyTile::kBytes, "key")};
  const typename C::WeightTile weight_tile{
      shared_region(C::kWeightOffset, C::WeightTile::kBytes, "weight")};
  const typename C::ValueTile value_tile{
      shared_region(C::kValueOffset, C::ValueTile::kBytes, "value")};
  const typename C::Table table{shared_region(C::kTableOffset, C::Table::kBytes, "table")};

  const BlockRows rows = table.fill(problem, params.rows, row_block, first_value);
  const BlockKeys keys = table.keys();
  const std::int64_t head_kv = rows.first_head / core::group_size(problem.sizes);
  const auto key_row = [&](const core::ConstOperand& x, int key, int count, int column) {
    const std::int64_t offset =
        rows.batch * x.stride_b + head_kv * x.stride_h + key * x.stride_s + column * x.stride_d;
    return ExactSource<T>{GlobalPtr<const T>(static_cast<const T*>(x.data)) + offset, x.stride_d,
                          key < seq_k ? count : 0};
  };

  T output[C::kR][C::kC] = {};
  T sum[C::kR] = {};
  T max[C::kR];
  FUSED_ATTENTION_UNROLL
  for (int r = 0; r < C::kR; ++r) max[r] = -static_cast<T>(kInfinity);

  FUSED_ATTENTION_NO_UNROLL
  for (int tile = keys.begin; tile < keys.end; tile += C::kKeys) {
    if (problem.mask.data != nullptr) {
      block_sync();
      // A tile in which nobody sees anything is not computed.
      if (!block_any(load_exact_mask<C>(problem, table, rows, tile, weight_tile))) continue;
    }
    T scores[C::kR][C::kN] = {};
    FUSED_ATTENTION_NO_UNROLL
    for (int column = 0; column < dim_qk; column += C::kTile.chunk) {
      block_sync();
      load_exact_rows<C::kThreads>(query_tile, [&](int row) {
        const core::ConstOperand& x = problem.query;
        const std::int64_t offset = row_offset(x, rows, table.place(row)) + column * x.stride_d;
        return ExactSource<T>{GlobalPtr<const T>(static_cast<const T*>(x.data)) + offset,
                              x.stride_d, row < rows.count ? dim_qk - column : 0};
      });
      load_exact_rows<C::kThreads>(key_tile, [&](int row) {
        return key_row(problem.key, tile + row, dim_qk - column, column);
      });
      block_sync();
      multiply_exact_rows(query_tile, key_tile, scores);
    }
    mask_exact_scores<C>(problem, table, tile, weight_tile, scores);
    exact_softmax<C>(weight_tile, scores, max, sum, output);
    const bool non_finite = load_exact_rows<C::kThreads>(value_tile, [&](int row) {
      return key_row(problem.value, tile + row, dim_v, first_value);
    });
    // Only where some key is hidden from some row, Inf and NaN must not meet its weight of 0.
    const bool some_hidden = problem.mask.data != nullptr || !keys.template is_full<C::kKeys>(tile);
    if (block_any(non_finite && some_hidden)) {
      multiply_exact_weights<true>(weight_tile, value_tile, output);
    } else {
      multiply_exact_weights<false>(weight_tile, value_tile, output);
    }
  }
  write_exact_forward<C>(params, table, max, sum, output);
}

}  // namespace fused_attention::cuda
