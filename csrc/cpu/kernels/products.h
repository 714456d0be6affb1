// The two products of a panel with a tile, and the form in which the tile is given to them: one
// makes a number of every (key, row) by dots, the other sums over the keys. With Factors the lanes
// hold the rows of the panel, with a StoredTile they hold dims (few_rows.h).
#pragma once

#include <cstdint>

#include "few_rows.h"
#include "gemm.h"
#include "panel.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

enum class TileForm {
  kPacked,   // reordered: pays where several panels share the tile
  kRows,     // by rows
  kFewRows,  // by rows, dims in the lanes
};

/// Elements of a tile's buffer, which holds it packed, or by rows where there is that form.
template <class C>
FUSED_ATTENTION_INLINE std::int64_t tile_size(std::int64_t packed, std::int64_t dim) {
  return C::kPaired ? packed : core::max64(packed, row_tile_size<typename C::Scalar>(dim));
}

/// The form for a block of `count` query rows.
template <class C>
FUSED_ATTENTION_INLINE TileForm tile_form(std::int64_t count) {
  if constexpr (C::kPaired) return TileForm::kPacked;
  if (C::kVectors == 1 && count <= kFewRows<typename C::Scalar>) return TileForm::kFewRows;
  return count <= kUnpackedPanels * C::kRows ? TileForm::kRows : TileForm::kPacked;
}

/// How the products of `count` query rows read the rows of a tile.
template <class C>
FUSED_ATTENTION_INLINE RowAccess row_access(std::int64_t count) {
  constexpr int M = C::kBroadcast;
  if (tile_form<C>(count) != TileForm::kFewRows) {
    return {.keys = M, .dims = M, .all_rows = true, .as_stored = false};
  }
  return {.keys = 1,
          .dims = kLanes<typename C::Scalar>,
          .all_rows = false,
          .as_stored = count <= kRowsOnStoredHalf};
}

/// to[j][lane] = [scale *] sum over d of keys[j][d] * rows[d][lane], for the keys of a span and on
/// to the end of their group. Without a scale (nullptr) the sums are taken as they are.
template <class C>
FUSED_ATTENTION_INLINE void dot_with_keys(TileSpan span, Factors<typename C::Element> keys,
                                          std::int64_t dim, const PanelRows<C>&,
                                          const typename C::Element* rows, typename C::Scalar* to,
                                          const typename C::Scalar* scale = nullptr) {
  using E = typename C::Element;
  constexpr int M = C::kBroadcast;
  keys.data += span.begin / M * keys.group;
  const int groups = (span.end - span.begin + M - 1) / M;
  const int depth = static_cast<int>(steps_of<E>(dim));
  to += span.begin * C::kRows;
  if (scale != nullptr) {
    multiply_groups<E, M, C::kVectors, Into::kScaleAndOverwrite>(groups, depth, keys, rows, to,
                                                                 scale);
  } else {
    multiply_groups<E, M, C::kVectors, Into::kOverwrite>(groups, depth, keys, rows, to);
  }
}
template <class C>
FUSED_ATTENTION_INLINE void dot_with_keys(TileSpan span, StoredTile<typename C::Scalar> keys,
                                          std::int64_t dim, const PanelRows<C>& panel,
                                          const typename C::Scalar* rows, typename C::Scalar* to) {
  dot_rows<C>(span, keys, dim, panel.count, rows, to);
}

/// sums[d][lane] = alpha[lane] * sums[d][lane] + sum over the keys of a span of weights[j][lane] *
/// values[j][d]. Without alpha (nullptr) the sums are taken as they are. Pairs of weights lie as
/// the numbers do, those of keys j and j + 1 in row j / 2.
template <class C>
FUSED_ATTENTION_INLINE void sum_over_keys(TileSpan span, Factors<typename C::Element> values,
                                          std::int64_t dim, const PanelRows<C>&,
                                          const typename C::Scalar* weights,
                                          const typename C::Scalar* alpha,
                                          typename C::Scalar* sums) {
  using E = typename C::Element;
  constexpr int M = C::kBroadcast;
  const int groups = static_cast<int>(core::ceil_div(dim, M));
  const std::int64_t begin = span.begin / ElementTraits<E>::kDepth;
  const int depth = static_cast<int>(steps_of<E>(span.end) - begin);
  values.data += begin * values.k_stride;
  const E* rows = reinterpret_cast<const E*>(weights) + begin * C::kRows;
  if (alpha != nullptr) {
    multiply_groups<E, M, C::kVectors, Into::kScaleThenAdd>(groups, depth, values, rows, sums,
                                                            alpha);
  } else {
    multiply_groups<E, M, C::kVectors, Into::kAdd>(groups, depth, values, rows, sums);
  }
}
template <class C>
FUSED_ATTENTION_INLINE void sum_over_keys(TileSpan span, StoredTile<typename C::Scalar> values,
                                          std::int64_t dim, const PanelRows<C>& panel,
                                          const typename C::Scalar* weights,
                                          const typename C::Scalar* alpha,
                                          typename C::Scalar* sums) {
  if (alpha != nullptr) scale_few_rows(dim, panel.count, alpha, sums);
  accumulate_rows<C>(span, values, dim, panel.count, weights, sums);
}

/// Where those sums have element d of a lane's row.
template <class C>
FUSED_ATTENTION_INLINE std::int64_t place_of(Factors<typename C::Element>, std::int64_t, int lane,
                                             std::int64_t d) {
  return d * C::kRows + lane;
}
template <class C>
FUSED_ATTENTION_INLINE std::int64_t place_of(StoredTile<typename C::Scalar>, std::int64_t dim,
                                             int lane, std::int64_t d) {
  return lane * vector_length<typename C::Scalar>(dim) + d;
}

FUSED_ATTENTION_END_ISA_NAMESPACE
