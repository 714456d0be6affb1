// Copies of Q, K, V in the order in which the micro-kernel reads them, in the computing type.
#pragma once

#include <cstdint>

#include "convert.h"
#include "gemm.h"
#include "simd.h"
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

typedef float Quad __attribute__((vector_size(16)));

FUSED_ATTENTION_INLINE void transpose_quad(const float* from, std::int64_t ld_from, float* to,
                                           std::int64_t ld_to) {
  Quad r[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) __builtin_memcpy(&r[i], from + i * ld_from, sizeof(Quad));
  const Quad low01 = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
  const Quad low23 = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
  const Quad high01 = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
  const Quad high23 = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  const Quad out[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                       __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                       __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                       __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) __builtin_memcpy(to + i * ld_to, &out[i], sizeof(Quad));
}

/// to[c * ld_to + r] = from[r * ld_from + c].
template <class T>
FUSED_ATTENTION_INLINE void transpose(std::int64_t rows, std::int64_t cols, const T* from,
                                      std::int64_t ld_from, T* to, std::int64_t ld_to) {
  const std::int64_t by_quads = sizeof(T) == sizeof(float) ? rows / 4 * 4 : 0;
  if constexpr (sizeof(T) == sizeof(float)) {
    for (std::int64_t r = 0; r < by_quads; r += 4) {
      std::int64_t c = 0;
      for (; c + 4 <= cols; c += 4) {
        transpose_quad(from + r * ld_from + c, ld_from, to + c * ld_to + r, ld_to);
      }
      for (; c < cols; ++c) {
        for (int i = 0; i < 4; ++i) to[c * ld_to + r + i] = from[(r + i) * ld_from + c];
      }
    }
  }
  for (std::int64_t r = by_quads; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) to[c * ld_to + r] = from[r * ld_from + c];
  }
}

template <class T>
FUSED_ATTENTION_INLINE bool all_finite(const T* row, int n) {
  constexpr int L = kLanes<T>;
  Vec<T> difference{};  // x - x is 0, or NaN for Inf and NaN
  int i = 0;
  for (; i + L <= n; i += L) difference += load(row + i) - load(row + i);
  T rest = 0;
  for (; i < n; ++i) rest += row[i] - row[i];
  for (int lane = 0; lane < L; ++lane) rest += difference[lane];
  return rest == 0;
}

/// Keys of a tile whose row holds Inf or NaN. Their products are never formed with a weight of 0:
/// `by_dim` holds zeros for them.
struct NonFinite {
  int count = 0;
  int key[kTileKeys];
};

/// One packed tile of K or V, M keys or dims to a group; either part may be absent (nullptr).
///   by_key: [keys / M][D][M], zeros past the last key: the keys are the rows of a product.
///   by_dim: [D / M][kTileKeys][M], zeros past the last dim: the keys are summed over.
template <class T>
struct PackedTile {
  T* by_key = nullptr;
  T* by_dim = nullptr;
};

template <class T, int M>
FUSED_ATTENTION_INLINE Factors<T> factors_by_key(const PackedTile<T>& tile, std::int64_t dim) {
  return {tile.by_key, M * dim, M, 1};
}

/// `begin`: the first key to sum over.
template <class T, int M>
FUSED_ATTENTION_INLINE Factors<T> factors_by_dim(const PackedTile<T>& tile, int begin) {
  return {tile.by_dim + begin * M, kTileKeys * M, M, 1};
}

/// Packs keys first <= j < first + count of head (b, h). `buffer`: M * padded_length(dim) elements.
template <class T, int M>
void pack_tile(core::DType dtype, const core::ConstOperand& x, std::int64_t b, std::int64_t h,
               std::int64_t first, int count, int dim, T* buffer, PackedTile<T> tile,
               NonFinite* non_finite) {
  constexpr core::DType kSame =
      sizeof(T) == sizeof(float) ? core::DType::kFloat32 : core::DType::kFloat64;
  const std::int64_t begin = b * x.stride_b + h * x.stride_h + first * x.stride_s;
  const bool as_stored = dtype == kSame && x.stride_d == 1 && dim % M == 0;
  if (non_finite != nullptr) non_finite->count = 0;
  for (int j = 0; j < count; j += M) {
    const int keys = count - j < M ? count - j : M;
    // Whole groups of whole rows are read where they are; others are completed with zeros.
    const bool in_place = as_stored && keys == M;
    const T* rows = in_place ? static_cast<const T*>(x.data) + begin + j * x.stride_s : buffer;
    const std::int64_t ld = in_place ? x.stride_s : padded_length<T>(dim);
    for (int m = 0; m < M && !in_place; ++m) {
      T* row = buffer + m * ld;
      const int length = m < keys ? dim : 0;
      load_row(dtype, x.data, begin + (j + m) * x.stride_s, x.stride_d, length, row);
      for (int d = length; d < round_up(dim, M); ++d) row[d] = 0;
    }
    if (tile.by_key != nullptr) {
      transpose(M, dim, rows, ld, tile.by_key + static_cast<std::int64_t>(j) * dim, M);
    }
    if (tile.by_dim == nullptr) continue;
    for (int m = 0; m < keys; ++m) {
      const T* row = rows + m * ld;
      T* to = tile.by_dim + static_cast<std::int64_t>(j + m) * M;
      const bool finite = all_finite(row, dim);
      if (!finite && non_finite != nullptr) non_finite->key[non_finite->count++] = j + m;
      for (int d = 0; d < dim; d += M, to += kTileKeys * M) {
        if (finite) {
          __builtin_memcpy(to, row + d, sizeof(T) * M);
        } else {
          __builtin_memset(to, 0, sizeof(T) * M);
        }
      }
    }
  }
}

/// A tile of K or V by rows, as it is stored or converted: for so few query rows that reordering it
/// would cost more than it saves.
template <class T>
struct RowTile {
  const T* data;
  std::int64_t ld;
};

template <class T, int M>
FUSED_ATTENTION_INLINE Factors<T> factors_by_key(const RowTile<T>& tile) {
  return {tile.data, M * tile.ld, 1, tile.ld};
}

/// `begin`: the first key to sum over.
template <class T, int M>
FUSED_ATTENTION_INLINE Factors<T> factors_by_dim(const RowTile<T>& tile, int begin) {
  return {tile.data + begin * tile.ld, M, tile.ld, 1};
}

/// Rows first <= j < first + count of head (b, h), in place if they can be: the products read whole
/// groups of M keys and M dims. `buffer`: row_tile_size elements. With `non_finite`, rows that hold
/// Inf or NaN are replaced by zeros and recorded.
template <class T, int M>
RowTile<T> read_rows(core::DType dtype, const core::ConstOperand& x, std::int64_t b, std::int64_t h,
                     std::int64_t first, int count, int dim, T* buffer, NonFinite* non_finite) {
  constexpr core::DType kSame =
      sizeof(T) == sizeof(float) ? core::DType::kFloat32 : core::DType::kFloat64;
  const std::int64_t begin = b * x.stride_b + h * x.stride_h + first * x.stride_s;
  if (non_finite != nullptr) non_finite->count = 0;
  if (dtype == kSame && x.stride_d == 1 && dim % M == 0 && count % M == 0) {
    const T* data = static_cast<const T*>(x.data) + begin;
    bool finite = true;
    for (int j = 0; j < count && non_finite != nullptr && finite; ++j) {
      finite = all_finite(data + j * x.stride_s, dim);
    }
    if (finite) return {data, x.stride_s};
  }
  const std::int64_t ld = padded_length<T>(dim);
  for (int j = 0; j < round_up(count, M); ++j) {
    T* row = buffer + j * ld;
    int length = j < count ? dim : 0;
    load_row(dtype, x.data, begin + j * x.stride_s, x.stride_d, length, row);
    if (non_finite != nullptr && !all_finite(row, length)) {
      non_finite->key[non_finite->count++] = j;
      length = 0;
    }
    for (int d = length; d < round_up(dim, M); ++d) row[d] = 0;
  }
  return {buffer, ld};
}

template <class T>
FUSED_ATTENTION_INLINE std::int64_t row_tile_size(std::int64_t dim) {
  return kTileKeys * padded_length<T>(dim);
}

/// Elements of each part of a packed tile.
template <class T, int M>
FUSED_ATTENTION_INLINE std::int64_t packed_size(std::int64_t dim) {
  return kTileKeys * round_up(dim, M);
}

FUSED_ATTENTION_END_ISA_NAMESPACE
