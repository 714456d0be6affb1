// Transposition between rows as they are stored and rows in vector lanes.
#pragma once

#include <cstdint>
#include <utility>

#include "simd.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

typedef float Quad __attribute__((vector_size(16)));
FUSED_ATTENTION_INLINE Quad load_quad(const float* p) {
  Quad q;
  __builtin_memcpy(&q, p, sizeof q);
  return q;
}

#if FUSED_ATTENTION_VECTOR_BYTES >= 32
/// Both side by side; `high` straight from memory, which spares the shuffle unit.
FUSED_ATTENTION_INLINE __m256 load_quads(const float* low, const float* high) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}
#endif

/// In every quad: {a[i0], a[i1], b[i2], b[i3]}, as the shufps instruction; or interleaved, with
/// unpcklps and unpckhps.
template <int i0, int i1, int i2, int i3, class V, int... I>
FUSED_ATTENTION_INLINE V shuffle_quads(V a, V b, std::integer_sequence<int, I...>) {
  constexpr int kSize = sizeof...(I);
  constexpr int kFrom[4] = {i0, i1, i2 + kSize, i3 + kSize};
  return __builtin_shufflevector(a, b, (I / 4 * 4 + kFrom[I % 4])...);
}
template <int half, class V, int... I>
FUSED_ATTENTION_INLINE V interleave_quads(V a, V b, std::integer_sequence<int, I...>) {
  constexpr int kSize = sizeof...(I);
  return __builtin_shufflevector(a, b, (I / 4 * 4 + 2 * half + I % 4 / 2 + I % 2 * kSize)...);
}

/// Reads 4 columns of 4 * kQuads rows, from(r) being the first of row r, and writes them as 4 rows
/// of 4 * kQuads elements, row c times scale(c) to to(c).
template <int kQuads, class From, class Scale, class To>
FUSED_ATTENTION_INLINE void transpose_block(const From& from, const Scale& scale, const To& to) {
  using Lanes = std::make_integer_sequence<int, 4 * kQuads>;
  const auto row = [&](int i) FUSED_ATTENTION_LAMBDA {
    if constexpr (kQuads == 1) return load_quad(from(i));
#if FUSED_ATTENTION_VECTOR_BYTES >= 32
    if constexpr (kQuads == 2) return load_quads(from(i), from(4 + i));
#endif
  };
  const auto r0 = row(0);
  const auto r1 = row(1);
  const auto r2 = row(2);
  const auto r3 = row(3);
  const auto low01 = interleave_quads<0>(r0, r1, Lanes{});
  const auto low23 = interleave_quads<0>(r2, r3, Lanes{});
  const auto high01 = interleave_quads<1>(r0, r1, Lanes{});
  const auto high23 = interleave_quads<1>(r2, r3, Lanes{});
  const decltype(r0) out[4] = {shuffle_quads<0, 1, 0, 1>(low01, low23, Lanes{}),
                               shuffle_quads<2, 3, 2, 3>(low01, low23, Lanes{}),
                               shuffle_quads<0, 1, 0, 1>(high01, high23, Lanes{}),
                               shuffle_quads<2, 3, 2, 3>(high01, high23, Lanes{})};
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const auto scaled = out[c] * scale(c);
    __builtin_memcpy(to(c), &scaled, sizeof scaled);
  }
}

/// to(c)[r] = scale(c) * from(r)[c] for 0 <= r < rows, 0 <= c < cols.
template <class T, class From, class Scale, class To>
FUSED_ATTENTION_INLINE void transpose(int rows, int cols, const From& from, const Scale& scale,
                                      const To& to) {
  int r = 0;
  const auto blocks = [&](auto quads) FUSED_ATTENTION_LAMBDA {
    constexpr int kRows = 4 * decltype(quads)::value;
    for (; r + kRows <= rows; r += kRows) {
      int c = 0;
      for (; c + 4 <= cols; c += 4) {
        transpose_block<decltype(quads)::value>(
            [&](int i) FUSED_ATTENTION_LAMBDA { return from(r + i) + c; },
            [&](int i) FUSED_ATTENTION_LAMBDA { return scale(c + i); },
            [&](int i) FUSED_ATTENTION_LAMBDA { return to(c + i) + r; });
      }
      for (; c < cols; ++c) {
        for (int i = 0; i < kRows; ++i) to(c)[r + i] = scale(c) * from(r + i)[c];
      }
    }
  };
  if constexpr (sizeof(T) == sizeof(float)) {
    // Wider blocks would need shuffles across 32 bytes, of which few run at a time.
    if constexpr (FUSED_ATTENTION_VECTOR_BYTES >= 32) blocks(std::integral_constant<int, 2>{});
    blocks(std::integral_constant<int, 1>{});
  }
  for (; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) to(c)[r] = scale(c) * from(r)[c];
  }
}

FUSED_ATTENTION_END_ISA_NAMESPACE
