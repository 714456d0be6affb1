// Scores of the kernels without tensor cores, for blocks of query rows: products, masks and the
// online softmax.
#pragma once

#include "block.h"
#include "dense_mask.h"
#include "exact_product.h"

namespace fused_attention::cuda {

/// Mask values of a tile, where its weights will be. Returns whether any row sees any key, as far
/// as the calling thread has looked.
template <class C>
FUSED_ATTENTION_DEVICE bool load_exact_mask(const core::Problem& problem,
                                            const typename C::Table& table, const BlockRows& rows,
                                            int tile, const typename C::Tiles::Weights& to) {
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
                                              const typename C::Tiles::Weights& mask,
                                              T (&scores)[C::Tiles::kR][C::Tiles::kN]) {
  const BlockBand band = table.band();
  const int seq_k = static_cast<int>(problem.sizes.seq_k);
  FUSED_ATTENTION_UNROLL
  for (int r = 0; r < C::Tiles::kR; ++r) {
    const int row = exact_row<C::Tiles::kR>(r);
    const int position = table.position(row);
    FUSED_ATTENTION_UNROLL
    for (int n = 0; n < C::Tiles::kN; ++n) {
      const int key = exact_other(n);
      T score = rounded_product(scores[r][n], static_cast<T>(problem.scale));
      if (problem.mask.data != nullptr) score = add_mask(score, load_shared<T>(mask.at(row, key)));
      const bool sees = tile + key < seq_k && band.sees(position, tile + key);
      scores[r][n] = sees ? score : -static_cast<T>(kInfinity);
    }
  }
}

/// What a block of query rows reads.
template <class C>
struct ExactRowBlock {
  using T = typename C::Element;
  using Tiles = typename C::Tiles;

  const core::Problem& problem;
  typename C::Table table;
  BlockRows rows;
  Tiles tiles;

  /// One of the block's rows of a (B, Hq, Sq, D) operand, from a column on.
  FUSED_ATTENTION_DEVICE ExactSource<T> row(const core::ConstOperand& x, int row, int column,
                                            int dim) const {
    return exact_source<T>(x, row < rows.count, row_offset(x, rows, table.place(row)), column, dim);
  }
  /// A row of a (B, Hkv, Sk, D) operand.
  FUSED_ATTENTION_DEVICE ExactSource<T> key(const core::ConstOperand& x, int key, int column,
                                            int dim) const {
    const std::int64_t head_kv = rows.first_head / core::group_size(problem.sizes);
    return exact_source<T>(x, key < problem.sizes.seq_k,
                           rows.batch * x.stride_b + head_kv * x.stride_h + key * x.stride_s,
                           column, dim);
  }

  /// The scores of the keys from `tile` on, -inf where hidden. False, for all threads, if the dense
  /// mask hides them all: then they are not computed.
  FUSED_ATTENTION_DEVICE bool scores(int tile, T (&to)[Tiles::kR][Tiles::kN]) const {
    if (problem.mask.data != nullptr) {
      block_sync();
      const bool any = load_exact_mask<C>(problem, table, rows, tile, tiles.weights());
      if (!block_any(any)) return false;
    }
    const int dim = static_cast<int>(problem.sizes.dim_qk);
    multiply_exact_operands(
        tiles, dim, [&](int r, int column) { return row(problem.query, r, column, dim); },
        [&](int k, int column) { return key(problem.key, tile + k, column, dim); }, to);
    mask_exact_scores<C>(problem, table, tile, tiles.weights(), to);
    return true;
  }
};

/// The online softmax of core/online_softmax.h for one row: its scores become weights. A hidden
/// key's weight is -0, which no exponential is. Returns what sums over earlier keys are multiplied
/// with.
template <class T, int kN>
FUSED_ATTENTION_DEVICE T add_exact_scores(T (&scores)[kN], T& max, T& sum) {
  constexpr T kMinusInfinity = -static_cast<T>(kInfinity);
  T largest = max;
  FUSED_ATTENTION_UNROLL
  for (int n = 0; n < kN; ++n) largest = maximum(largest, scores[n]);
  FUSED_ATTENTION_UNROLL
  for (int mask = 1; mask < ExactTile::kLanes; mask *= 2) {
    largest = maximum(largest, shuffle_xor(largest, mask));
  }
  const T shift = largest == kMinusInfinity ? T(0) : largest;
  const T rescale = exponential(max - shift);
  max = largest;
  sum *= rescale;
  FUSED_ATTENTION_UNROLL
  for (int n = 0; n < kN; ++n) {
    const T score = scores[n];
    scores[n] = score == kMinusInfinity ? -T(0) : exponential(score - shift);
    sum += scores[n];
  }
  return rescale;
}

/// A thread's rectangle of weights, for the product.
template <class Tiles, class T>
FUSED_ATTENTION_DEVICE void store_exact_weights(const Tiles& tiles,
                                                const T (&weights)[Tiles::kR][Tiles::kN]) {
  FUSED_ATTENTION_UNROLL
  for (int r = 0; r < Tiles::kR; ++r) {
    FUSED_ATTENTION_UNROLL
    for (int n = 0; n < Tiles::kN; ++n) {
      store_shared(tiles.weights().at(exact_row<Tiles::kR>(r), exact_other(n)), weights[r][n]);
    }
  }
}

}  // namespace fused_attention::cuda
