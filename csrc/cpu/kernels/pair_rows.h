// Rows of bf16 as operands of products in pairs: packed tiles of K and V, and panels of Q and dO.
#pragma once

#include <cstdint>

#include "bf16_pairs.h"
#include "pack.h"
#include "panel.h"
#include "transpose.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// Copies n bf16 of any stride, with zeros up to `length` pairs.
FUSED_ATTENTION_INLINE void copy_pairs(const void* data, std::int64_t offset, std::int64_t stride,
                                       int n, std::int64_t length, BFloat16Pair* to) {
  const auto* from = static_cast<const std::uint16_t*>(data) + offset;
  char* bytes = reinterpret_cast<char*>(to);
  if (stride == 1) {
    __builtin_memcpy(bytes, from, std::size_t{2} * static_cast<std::size_t>(n));
  } else {
    for (int i = 0; i < n; ++i) __builtin_memcpy(bytes + std::int64_t{2} * i, from + i * stride, 2);
  }
  __builtin_memset(bytes + std::int64_t{2} * n, 0, static_cast<std::size_t>(4 * length - 2 * n));
}

/// The row in place if it can be read as whole pairs, else copied to `buffer`.
FUSED_ATTENTION_INLINE const BFloat16Pair* read_pairs(const void* data, std::int64_t offset,
                                                      std::int64_t stride, int n,
                                                      BFloat16Pair* buffer) {
  const auto* from = static_cast<const std::uint16_t*>(data) + offset;
  if (stride == 1 && n % 2 == 0 && reinterpret_cast<std::uintptr_t>(from) % 4 == 0) {
    return reinterpret_cast<const BFloat16Pair*>(from);
  }
  copy_pairs(data, offset, stride, n, steps_of<BFloat16Pair>(n), buffer);
  return buffer;
}

/// Whether any of many bf16 is Inf or NaN: a sum of 0 * x.
struct PairCheck {
  Vec<float> sum = {};
  FUSED_ATTENTION_INLINE void add(const BFloat16Pair* row, int pairs) {
    int i = 0;
    for (; i + 16 <= pairs; i += 16) sum = multiply_add(load(row + i), __m512bh{}, sum);
    if (i < pairs) {
      const auto mask = static_cast<__mmask16>((1U << (pairs - i)) - 1U);
      const __m512i rest = _mm512_maskz_loadu_epi32(mask, row + i);
      sum = multiply_add(bit_cast<__m512bh>(rest), __m512bh{}, sum);
    }
  }
  FUSED_ATTENTION_INLINE bool all_finite() const { return sum_lanes<float>(sum) == 0; }
};

FUSED_ATTENTION_INLINE bool all_finite(const BFloat16Pair* row, int pairs) {
  PairCheck check;
  check.add(row, pairs);
  return check.all_finite();
}

/// to(c)[r] = from(r)[c]: pairs move like floats.
template <class From, class To>
FUSED_ATTENTION_INLINE void transpose_pairs(int rows, int cols, const From& from, const To& to) {
  transpose<float>(
      rows, cols,
      [&](int r) FUSED_ATTENTION_LAMBDA { return reinterpret_cast<const float*>(from(r)); },
      Unchanged{}, [&](int c) FUSED_ATTENTION_LAMBDA { return reinterpret_cast<float*>(to(c)); });
}

/// Dims of two keys to their places by dim, zeros past the last one; groups are `stride` apart.
template <int M>
FUSED_ATTENTION_INLINE void interleave_groups(const BFloat16Pair* even, const BFloat16Pair* odd,
                                              int dim, std::int64_t stride, BFloat16Pair* to) {
  static_assert(M == 8);
  const auto* first = reinterpret_cast<const Half*>(even);
  const auto* second = reinterpret_cast<const Half*>(odd);
  int d = 0;
  for (; d + 2 * M <= dim; d += 2 * M, to += 2 * stride) {
    const __m512i pairs = interleave_16(first + d, second + d);
    const __m256i groups[2] = {_mm512_castsi512_si256(pairs), _mm512_extracti64x4_epi64(pairs, 1)};
    __builtin_memcpy(to, &groups[0], sizeof groups[0]);
    __builtin_memcpy(to + stride, &groups[1], sizeof groups[1]);
  }
  for (; d + M <= dim; d += M, to += stride) {
    const __m256i group = interleave_8(first + d, second + d);
    __builtin_memcpy(to, &group, sizeof group);
  }
  for (int i = 0; i < M && d < dim; ++i) {
    to[i].bits = d + i < dim ? first[d + i] | static_cast<std::uint32_t>(second[d + i]) << 16 : 0;
  }
}

/// remove_non_finite for pairs of keys.
template <int M>
void remove_non_finite_pairs(int count, int dim, BFloat16Pair* by_dim, NonFinite* non_finite) {
  for (int j = 0; j < count; ++j) {
    const std::uint32_t exponent = j % 2 == 0 ? 0x7F80U : 0x7F800000U;
    const std::uint32_t others = j % 2 == 0 ? 0xFFFF0000U : 0xFFFFU;
    const auto all = [&](const auto& f) {
      for (int g = 0; g * M < dim; ++g) {
        for (int i = 0; i < M; ++i) f(by_dim[g * kGroupStride<BFloat16Pair, M> + j / 2 * M + i]);
      }
    };
    bool finite = true;
    all([&](BFloat16Pair x) { finite &= (x.bits & exponent) != exponent; });
    if (finite) continue;
    if (non_finite != nullptr) non_finite->key[non_finite->count++] = j;
    all([&](BFloat16Pair& x) { x.bits &= others; });
  }
}

/// Packs a tile of bf16, as the other pack_tile. `buffer`: M padded rows.
template <int M>
void pack_tile(const TileSource& x, float* buffer, PackedTile<BFloat16Pair> tile,
               NonFinite* non_finite) {
  using E = BFloat16Pair;
  const int pairs = static_cast<int>(steps_of<E>(x.dim));
  const std::int64_t ld = padded_length<float>(pairs);
  PairCheck check;
  for (int j = 0; j < x.count; j += M) {
    const E* row[M];
    for (int m = 0; m < M; ++m) {
      E* copy = reinterpret_cast<E*>(buffer) + m * ld;
      if (j + m < x.count) {
        row[m] = read_pairs(x.data, x.begin + (j + m) * x.stride_s, x.stride_d, x.dim, copy);
      } else {
        __builtin_memset(copy, 0, sizeof(E) * static_cast<std::size_t>(pairs));
        row[m] = copy;
      }
    }
    if (tile.by_key != nullptr) {
      E* to = tile.by_key + static_cast<std::int64_t>(j) * pairs;
      transpose_pairs(
          M, pairs, [&](int m) FUSED_ATTENTION_LAMBDA { return row[m]; },
          [&](int d) FUSED_ATTENTION_LAMBDA { return to + d * M; });
    }
    if (tile.by_dim == nullptr) continue;
    for (int m = 0; m < M; ++m) check.add(row[m], pairs);
    for (int m = 0; m < M; m += 2) {
      E* to = tile.by_dim + (j + m) / 2 * M;
      interleave_groups<M>(row[m], row[m + 1], x.dim, kGroupStride<E, M>, to);
    }
  }
  if (non_finite != nullptr) non_finite->count = 0;
  if (!check.all_finite()) {
    remove_non_finite_pairs<M>(x.count, x.dim, tile.by_dim, non_finite);
  }
}

/// to[pair of dims][lane], as load_panel has it, but neither scaled nor converted.
template <class C>
void load_pair_panel(const core::ConstOperand& x, const PanelRows<C>& rows, int dim, float* buffer,
                     BFloat16Pair* to) {
  using E = BFloat16Pair;
  const int pairs = static_cast<int>(steps_of<E>(dim));
  const std::int64_t ld = padded_length<float>(pairs);
  E* copies = reinterpret_cast<E*>(buffer);
  const E* row[C::kRows];
  for (int lane = 0; lane < C::kRows; ++lane) {
    E* copy = copies + lane * ld;
    if (lane < rows.count) {
      row[lane] = read_pairs(x.data, row_offset<C>(x, rows, lane), x.stride_d, dim, copy);
    } else {
      __builtin_memset(copy, 0, sizeof(E) * static_cast<std::size_t>(pairs));
      row[lane] = copy;
    }
  }
  transpose_pairs(
      C::kRows, pairs, [&](int lane) FUSED_ATTENTION_LAMBDA { return row[lane]; },
      [&](int d) FUSED_ATTENTION_LAMBDA { return to + d * C::kRows; });
}

FUSED_ATTENTION_END_ISA_NAMESPACE
