// The products for so few query rows that a panel would be mostly empty lanes: the lanes hold dims
// instead, K and V are read by rows, and every number of them serves two query rows.
//
// Scores, softmax and masks are those of a panel: keys x lanes, one lane to a row.
#pragma once

#include <cstdint>
#include <utility>

#include "gemm.h"
#include "panel.h"
#include "panel_io.h"
#include "row_tile.h"
#include "transpose.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// Row length of the row-major copies: whole vectors.
template <class T>
FUSED_ATTENTION_INLINE std::int64_t vector_length(std::int64_t dim) {
  return round_up(dim, kLanes<T>);
}

template <class V, int... I>
FUSED_ATTENTION_INLINE auto add_halves(V v, std::integer_sequence<int, I...>) {
  constexpr int kHalf = sizeof...(I);
  return __builtin_shufflevector(v, v, I...) + __builtin_shufflevector(v, v, (I + kHalf)...);
}
template <class V>
FUSED_ATTENTION_INLINE Quad sum_quads(V v) {
  if constexpr (sizeof(V) == sizeof(Quad)) {
    return v;
  } else {
    using Half = std::make_integer_sequence<int, sizeof(V) / sizeof(float) / 2>;
    return sum_quads(add_halves(v, Half{}));
  }
}

/// The sums over the lanes of four vectors, to[i * stride].
FUSED_ATTENTION_INLINE void store_sums(const Vec<float>* x, float* to, int stride) {
  Vec<float> column[4];
  transpose_quads(x[0], x[1], x[2], x[3], column);
  const Quad sums = sum_quads((column[0] + column[1]) + (column[2] + column[3]));
  for (int i = 0; i < 4; ++i) to[i * stride] = sums[i];
}
FUSED_ATTENTION_INLINE void store_sums(const Vec<double>* x, double* to, int stride) {
  for (int i = 0; i < 4; ++i) to[i * stride] = sum_lanes<double>(x[i]);
}

/// scores[j][r] = sum over d of keys[j][d] * rows[r][d] for `keys` keys and R rows; `width` is the
/// distance between the scores of two keys.
template <class T, int R, int kKeys, class S>
FUSED_ATTENTION_INLINE void dot_keys(const S* keys, std::int64_t ld_keys, int vectors,
                                     const T* rows, std::int64_t ld, T* scores, int width) {
  constexpr int L = kLanes<T>;
  Vec<T> sum[R][kKeys];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) sum[r][j] = Vec<T>{};
  }
  for (int v = 0; v < vectors; ++v) {
    Vec<T> row[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) row[r] = load(rows + r * ld + v * L);
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
      const Vec<T> key = load(keys + j * ld_keys + v * L);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r][j] += key * row[r];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    if constexpr (kKeys == 1) {
      scores[r] = sum_lanes<T>(sum[r][0]);
    } else {
#pragma GCC unroll 16
      for (int j = 0; j < kKeys; j += 4) store_sums(sum[r] + j, scores + j * width + r, width);
    }
  }
}

/// The same for the keys of a span and any number of rows: two at a time, 8 accumulators.
template <class C>
void dot_rows(TileSpan span, StoredTile<typename C::Scalar> tile, std::int64_t dim, int count,
              const typename C::Scalar* rows, typename C::Scalar* scores) {
  using T = typename C::Scalar;
  const std::int64_t ld = vector_length<T>(dim);
  const int vectors = static_cast<int>(ld) / kLanes<T>;
  visit_stored(tile, [&](const auto* keys) {
    const auto dot = [&]<int R>(std::integral_constant<int, R>, int first) {
      constexpr int kKeys = 8 / R;
      T* to = scores + first;
      int j = span.begin;
      for (; j + kKeys <= span.end; j += kKeys) {
        dot_keys<T, R, kKeys>(keys + j * tile.ld, tile.ld, vectors, rows + first * ld, ld,
                              to + j * C::kRows, C::kRows);
      }
      for (; j < span.end; ++j) {
        dot_keys<T, R, 1>(keys + j * tile.ld, tile.ld, vectors, rows + first * ld, ld,
                          to + j * C::kRows, C::kRows);
      }
    };
    int first = 0;
    for (; first + 2 <= count; first += 2) dot(std::integral_constant<int, 2>{}, first);
    if (first < count) dot(std::integral_constant<int, 1>{}, first);
  });
}

/// sums[r][0 .. dim) += sum over the keys of a span of weights[j][r] * tile[j][0 .. dim).
template <class C>
void accumulate_rows(TileSpan span, StoredTile<typename C::Scalar> tile, std::int64_t dim,
                     int count, const typename C::Scalar* weights, typename C::Scalar* sums) {
  using T = typename C::Scalar;
  const std::int64_t ld = vector_length<T>(dim);
  const int vectors = static_cast<int>(ld) / kLanes<T>;
  const int keys = span.end - span.begin;
  visit_stored(tile, [&](const auto* values) {
    values += span.begin * tile.ld;
    Factors<T> factors{weights + span.begin * C::kRows, 0, C::kRows, 1};
    T* to = sums;
    int left = count;
    for (; left >= 2; left -= 2, factors.data += 2, to += 2 * ld) {
      accumulate_columns<T, 2, 4>(keys, vectors, factors, values, tile.ld, to, ld);
    }
    if (left > 0) accumulate_columns<T, 1, 8>(keys, vectors, factors, values, tile.ld, to, ld);
  });
}

/// sums[r][0 .. dim) *= alpha[r].
template <class T>
FUSED_ATTENTION_INLINE void scale_few_rows(std::int64_t dim, int count, const T* alpha, T* sums) {
  const std::int64_t ld = vector_length<T>(dim);
  for (int r = 0; r < count; ++r, sums += ld) {
    for (std::int64_t d = 0; d < ld; d += kLanes<T>) {
      store(sums + d, load(sums + d) * splat(alpha[r]));
    }
  }
}

/// to[r][0 .. dim) = factor * x[row r], row-major, zeros up to the vector length. `buffer`: a
/// padded row.
template <class C>
void load_few_rows(core::DType dtype, const core::ConstOperand& x, const PanelRows<C>& rows,
                   int dim, typename C::Scalar factor, typename C::Scalar* buffer,
                   typename C::Scalar* to) {
  using T = typename C::Scalar;
  const std::int64_t ld = vector_length<T>(dim);
  for (int r = 0; r < rows.count; ++r, to += ld) {
    const T* row = read_row(dtype, x.data, row_offset<C>(x, rows, r), x.stride_d, dim, buffer);
    copy_padded(row, dim, factor, ld, to);
  }
}

/// sums[d][lane], as a panel has them, from sums[r][d] in place. `buffer`: as long.
template <class C>
void move_into_lanes(std::int64_t dim, int count, typename C::Scalar* buffer,
                     typename C::Scalar* sums) {
  using T = typename C::Scalar;
  const std::int64_t ld = vector_length<T>(dim);
  __builtin_memcpy(buffer, sums, sizeof(T) * static_cast<std::size_t>(count * ld));
  for (std::int64_t d = 0; d < dim; ++d) {
    for (int lane = 0; lane < C::kRows; ++lane) {
      sums[d * C::kRows + lane] = lane < count ? buffer[lane * ld + d] : T(0);
    }
  }
}

FUSED_ATTENTION_END_ISA_NAMESPACE
