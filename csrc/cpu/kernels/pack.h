// Copies of Q, K, V in the order in which the micro-kernel reads them, in the computing type.
#pragma once

#include <cstdint>

#include "../../core/schedule.h"
#include "convert.h"
#include "gemm.h"
#include "simd.h"
#include "transpose.h"
#include "tuning.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

FUSED_ATTENTION_INLINE std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Row length of a row-major buffer: whole vectors, plus one cache line where the length would
/// otherwise be a power of two and alias in L1.
template <class T>
FUSED_ATTENTION_INLINE std::int64_t padded_length(std::int64_t n) {
  const std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
  const std::int64_t length = round_up(n, line);
  return (length & (length - 1)) == 0 ? length + line : length;
}

/// Hands out pieces of a buffer, each aligned to a cache line. Over nullptr it only counts.
class Arena {
 public:
  explicit Arena(void* base) : base_(reinterpret_cast<std::uintptr_t>(base)) {}

  template <class T>
  FUSED_ATTENTION_INLINE T* take(std::int64_t count) {
    T* piece = reinterpret_cast<T*>(base_ + static_cast<std::uintptr_t>(used_));
    used_ += round_up(count * static_cast<std::int64_t>(sizeof(T)), 64);
    return piece;
  }
  FUSED_ATTENTION_INLINE std::int64_t bytes() const { return used_; }
  FUSED_ATTENTION_INLINE void rewind(std::int64_t bytes) { used_ = bytes; }

 private:
  std::uintptr_t base_;
  std::int64_t used_ = 0;
};

/// Whether any of many numbers is Inf or NaN.
template <class T>
struct FiniteCheck {
  Vec<T> sum[4] = {};  // of 0 * x: 0, or NaN for Inf and NaN; four, so that none waits for itself
  T rest = 0;

  /// Of what change(index, elements) makes of a row. Elements may be of half precision where n is a
  /// whole number of vectors.
  template <class S, class Change = Unchanged>
  FUSED_ATTENTION_INLINE void add(const S* row, int n, const Change& change = Change{}) {
    constexpr int L = kLanes<T>;
    int i = 0;
    for (; i + 4 * L <= n; i += 4 * L) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) sum[k] += change(i, load(row + i + k * L)) * T(0);
    }
    for (; i + L <= n; i += L) sum[0] += change(i, load(row + i)) * T(0);
    if constexpr (sizeof(S) == sizeof(T)) {
      for (; i < n; ++i) rest += change(i, row[i]) * T(0);
    }
  }
  FUSED_ATTENTION_INLINE bool all_finite() const {
    return sum_lanes<T>((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest == 0;
  }
};

template <class T>
FUSED_ATTENTION_INLINE bool all_finite(const T* row, int n) {
  FiniteCheck<T> check;
  check.add(row, n);
  return check.all_finite();
}

/// Keys of a tile whose row holds Inf or NaN. Their products are never formed with a weight of 0:
/// `by_dim` holds zeros for them.
struct NonFinite {
  int count = 0;
  int key[kTileKeys];
};

/// Elements between the groups of a tile packed by dim: one cache line more than the keys need, as
/// groups a power of two apart would alias in L1.
template <class E, int M>
constexpr int kGroupStride =
    kTileKeys / ElementTraits<E>::kDepth * M + 64 / static_cast<int>(sizeof(E));

/// One packed tile of K or V, M keys or dims to a group; either part may be absent (nullptr).
///   by_key: [keys / M][D][M], zeros past the last key: the keys are the rows of a product.
///   by_dim: [D / M][kGroupStride / M][M], zeros past the last dim: the keys are summed over.
/// Of pairs, D is half as long in by_key, and the keys are in by_dim.
template <class E>
struct PackedTile {
  E* by_key = nullptr;
  E* by_dim = nullptr;
};

template <class E, int M>
FUSED_ATTENTION_INLINE Factors<E> factors_by_key(const PackedTile<E>& tile, std::int64_t dim) {
  return {tile.by_key, M * steps_of<E>(dim), M, 1};
}

template <class E, int M>
FUSED_ATTENTION_INLINE Factors<E> factors_by_dim(const PackedTile<E>& tile) {
  return {tile.by_dim, kGroupStride<E, M>, M, 1};
}

/// Copies the rows of up to M keys, of which the first is at `to`, into their places by dim.
template <class T, int M>
FUSED_ATTENTION_INLINE void pack_by_dim(const T* const (&row)[M], int keys, int dim, T* to) {
  int d = 0;
  for (; d + M <= dim; d += M, to += kGroupStride<T, M>) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      if (m < keys) __builtin_memcpy(to + m * M, row[m] + d, sizeof(T) * M);
    }
  }
  for (int m = 0; m < keys && d < dim; ++m) {
    for (int i = 0; i < M; ++i) to[m * M + i] = d + i < dim ? row[m][d + i] : T(0);
  }
}

/// Replaces keys that hold Inf or NaN by zeros, and records them.
template <class T, int M>
void remove_non_finite(int count, int dim, T* by_dim, NonFinite* non_finite) {
  for (int j = 0; j < count; ++j) {
    bool finite = true;
    for (int g = 0; g * M < dim; ++g) {
      finite &= all_finite(by_dim + g * kGroupStride<T, M> + j * M, M);
    }
    if (finite) continue;
    if (non_finite != nullptr) non_finite->key[non_finite->count++] = j;
    for (int g = 0; g * M < dim; ++g) {
      __builtin_memset(by_dim + g * kGroupStride<T, M> + j * M, 0, sizeof(T) * M);
    }
  }
}

/// Where a tile of K or V is stored: `count` rows of `dim` elements.
struct TileSource {
  core::DType dtype;
  const void* data;
  std::int64_t begin;     // the first element
  std::int64_t stride_s;  // from row to row
  std::int64_t stride_d;  // from element to element
  int count;
  int dim;
};

/// The keys first <= j < first + count that `block` meets in `x`, which is K or V.
FUSED_ATTENTION_INLINE TileSource tile_source(const core::Problem& problem,
                                              const core::ConstOperand& x, std::int64_t dim,
                                              const core::RowBlock& block, std::int64_t first,
                                              int count) {
  const std::int64_t begin =
      block.batch * x.stride_b + block.head_kv * x.stride_h + first * x.stride_s;
  return {problem.dtype, x.data, begin, x.stride_s, x.stride_d, count, static_cast<int>(dim)};
}

/// Packs a tile. `buffer`: M * padded_length(dim) elements.
template <int M, class T>
void pack_tile(const TileSource& x, T* buffer, PackedTile<T> tile, NonFinite* non_finite) {
  const auto [dtype, data, begin, stride_s, stride_d, count, dim] = x;
  const std::int64_t ld = padded_length<T>(dim);
  FiniteCheck<T> check;
  for (int j = 0; j < count; j += M) {
    const int keys = count - j < M ? count - j : M;
    const T* row[M];
    for (int m = 0; m < M; ++m) {
      T* copy = buffer + m * ld;
      if (m < keys) {
        row[m] = read_row(dtype, data, begin + (j + m) * stride_s, stride_d, dim, copy);
      } else {
        for (int d = 0; d < dim; ++d) copy[d] = 0;
        row[m] = copy;
      }
    }
    if (tile.by_key != nullptr) {
      T* to = tile.by_key + static_cast<std::int64_t>(j) * dim;
      transpose<T>(
          M, dim, [&](int m) FUSED_ATTENTION_LAMBDA { return row[m]; }, Unchanged{},
          [&](int d) FUSED_ATTENTION_LAMBDA { return to + d * M; });
    }
    if (tile.by_dim == nullptr) continue;
    for (int m = 0; m < keys; ++m) check.add(row[m], dim);
    if (keys == M) {
      pack_by_dim<T, M>(row, M, dim, tile.by_dim + j * M);
    } else {
      pack_by_dim<T, M>(row, keys, dim, tile.by_dim + j * M);
    }
  }
  if (non_finite != nullptr) non_finite->count = 0;
  if (!check.all_finite()) remove_non_finite<T, M>(count, dim, tile.by_dim, non_finite);
}

/// Elements of a tile packed by key, and by dim.
template <class E>
FUSED_ATTENTION_INLINE std::int64_t by_key_size(std::int64_t dim) {
  return kTileKeys * steps_of<E>(dim);
}
template <class E, int M>
FUSED_ATTENTION_INLINE std::int64_t by_dim_size(std::int64_t dim) {
  return core::ceil_div(dim, M) * kGroupStride<E, M>;
}

FUSED_ATTENTION_END_ISA_NAMESPACE
