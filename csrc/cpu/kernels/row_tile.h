// K and V by rows, as they are stored or converted: for so few query rows that reordering a tile
// would cost more than it saves.
#pragma once

#include <cstdint>

#include "convert.h"
#include "gemm.h"
#include "pack.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

template <class T>
struct RowTile {
  const T* data;
  std::int64_t ld;
};

template <class T>
FUSED_ATTENTION_INLINE std::int64_t row_tile_size(std::int64_t dim) {
  return kTileKeys * padded_length<T>(dim);
}

template <class T, int M>
FUSED_ATTENTION_INLINE Factors<T> factors_by_key(const RowTile<T>& tile) {
  return {tile.data, M * tile.ld, 1, tile.ld};
}
template <class T, int M>
FUSED_ATTENTION_INLINE Factors<T> factors_by_dim(const RowTile<T>& tile) {
  return {tile.data, M, tile.ld, 1};
}

/// Rows in any type from which whole vectors are read: T, or half precision where T is float.
template <class T>
struct StoredTile {
  const void* data;
  core::DType dtype;
  std::int64_t ld;
};

/// f(data), a pointer to elements of the stored type.
template <class T, class F>
FUSED_ATTENTION_INLINE void visit_stored(const StoredTile<T>& tile, const F& f) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (tile.dtype == core::DType::kBFloat16) return f(static_cast<const BFloat16*>(tile.data));
    if (tile.dtype == core::DType::kFloat16) return f(static_cast<const Float16*>(tile.data));
  }
  f(static_cast<const T*>(tile.data));
}

/// How products read a tile: whole groups of keys and of dims, row after row or, for each group of
/// dims, all rows.
struct RowAccess {
  int keys;
  int dims;
  bool all_rows;
  bool as_stored;  // half precision, too, if whole vectors can be read
};

/// Whether a tile's rows at this distance fit too few sets of an L1 of 64 sets: the lines of 128
/// keys would evict each other.
template <class T>
FUSED_ATTENTION_INLINE bool rows_alias(std::int64_t stride) {
  return stride * static_cast<std::int64_t>(sizeof(T)) % 512 == 0;
}

/// The rows in place if they can be; else in `buffer` (row_tile_size elements), with zeros up to
/// whole groups.
template <class T>
RowTile<T> read_rows(const TileSource& x, RowAccess access, T* buffer) {
  if (x.dtype == kStoredAs<T> && x.stride_d == 1 && x.dim % access.dims == 0 &&
      x.count % access.keys == 0 && !(access.all_rows && rows_alias<T>(x.stride_s))) {
    return {static_cast<const T*>(x.data) + x.begin, x.stride_s};
  }
  const std::int64_t ld = padded_length<T>(x.dim);
  const int padded = static_cast<int>(round_up(x.dim, access.dims));
  for (int j = 0; j < round_up(x.count, access.keys); ++j) {
    T* row = buffer + j * ld;
    const int length = j < x.count ? x.dim : 0;
    load_row(x.dtype, x.data, x.begin + j * x.stride_s, x.stride_d, length, row);
    for (int d = length; d < padded; ++d) row[d] = 0;
  }
  return {buffer, ld};
}

/// The tile with zeros for the rows that hold Inf or NaN, which are recorded: itself if there are
/// none, else in `buffer` (row_tile_size elements, where the tile may be already).
template <class T>
RowTile<T> without_non_finite(RowTile<T> tile, int count, int dim, RowAccess access, T* buffer,
                              NonFinite* non_finite) {
  non_finite->count = 0;
  FiniteCheck<T> check;
  for (int j = 0; j < count; ++j) check.add(tile.data + j * tile.ld, dim);
  if (check.all_finite()) return tile;
  const std::int64_t ld = padded_length<T>(dim);
  const std::int64_t padded = round_up(dim, access.dims);
  for (int j = 0; j < round_up(count, access.keys); ++j) {
    const T* from = tile.data + j * tile.ld;
    T* row = buffer + j * ld;
    const bool finite = j < count && all_finite(from, dim);
    if (j < count && !finite) non_finite->key[non_finite->count++] = j;
    for (std::int64_t d = 0; d < padded; ++d) row[d] = finite ? from[d] : T(0);
  }
  return {buffer, ld};
}

/// As read_rows, but half precision may stay where it is, too.
template <class T>
StoredTile<T> stored_rows(const TileSource& x, RowAccess access, T* buffer) {
  const bool is_half = x.dtype == core::DType::kBFloat16 || x.dtype == core::DType::kFloat16;
  if (access.as_stored && is_half && sizeof(T) == sizeof(float) && x.stride_d == 1 &&
      x.dim % access.dims == 0) {
    return {static_cast<const std::uint16_t*>(x.data) + x.begin, x.dtype, x.stride_s};
  }
  const RowTile<T> rows = read_rows(x, access, buffer);
  return {rows.data, kStoredAs<T>, rows.ld};
}

template <class T>
StoredTile<T> without_non_finite(StoredTile<T> tile, int count, int dim, RowAccess access,
                                 T* buffer, NonFinite* non_finite) {
  non_finite->count = 0;
  FiniteCheck<T> check;
  visit_stored(tile, [&](const auto* data) {
    for (int j = 0; j < count; ++j) check.add(data + j * tile.ld, dim);
  });
  if (check.all_finite()) return tile;
  RowTile<T> rows{static_cast<const T*>(tile.data), tile.ld};
  if (tile.dtype != kStoredAs<T>) {
    rows = read_rows({tile.dtype, tile.data, 0, tile.ld, 1, count, dim}, access, buffer);
  }
  rows = without_non_finite(rows, count, dim, access, buffer, non_finite);
  return {rows.data, kStoredAs<T>, rows.ld};
}

FUSED_ATTENTION_END_ISA_NAMESPACE
