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

/// Four vectors of whole quads, each quad of them a row of a 4 x 4 matrix, to its columns.
template <class V>
FUSED_ATTENTION_INLINE void transpose_quads(V r0, V r1, V r2, V r3, V (&out)[4]) {
  using Lanes = std::make_integer_sequence<int, sizeof(V) / sizeof(float)>;
  const V low01 = interleave_quads<0>(r0, r1, Lanes{});
  const V low23 = interleave_quads<0>(r2, r3, Lanes{});
  const V high01 = interleave_quads<1>(r0, r1, Lanes{});
  const V high23 = interleave_quads<1>(r2, r3, Lanes{});
  out[0] = shuffle_quads<0, 1, 0, 1>(low01, low23, Lanes{});
  out[1] = shuffle_quads<2, 3, 2, 3>(low01, low23, Lanes{});
  out[2] = shuffle_quads<0, 1, 0, 1>(high01, high23, Lanes{});
  out[3] = shuffle_quads<2, 3, 2, 3>(high01, high23, Lanes{});
}

/// For transpose: elements as they are.
struct Unchanged {
  template <class X>
  FUSED_ATTENTION_INLINE X operator()(int, X x) const {
    return x;
  }
};

/// Reads 4 columns of 4 rows, from(r) being the first of row r, and writes them as 4 rows, what
/// change(c, elements) makes of column c to to(c).
template <class From, class Change, class To>
FUSED_ATTENTION_INLINE void transpose_4x4(const From& from, const Change& change, const To& to) {
  Quad out[4];
  transpose_quads(load_quad(from(0)), load_quad(from(1)), load_quad(from(2)), load_quad(from(3)),
                  out);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    out[c] = change(c, out[c]);
    __builtin_memcpy(to(c), &out[c], sizeof(Quad));
  }
}

#if FUSED_ATTENTION_VECTOR_BYTES >= 32
/// The same for 8 rows of 4 columns. The second half comes straight from memory, which spares the
/// shuffle unit.
template <class From, class Change, class To>
FUSED_ATTENTION_INLINE void transpose_8x4(const From& from, const Change& change, const To& to) {
  const auto load_quads = [&](int r) FUSED_ATTENTION_LAMBDA {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from(r))),
                                _mm_loadu_ps(from(r + 4)), 1);
  };
  __m256 out[4];
  transpose_quads(load_quads(0), load_quads(1), load_quads(2), load_quads(3), out);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) _mm256_storeu_ps(to(c), change(c, out[c]));
}

/// The same for 4 rows of 8 columns.
template <class From, class Change, class To>
FUSED_ATTENTION_INLINE void transpose_4x8(const From& from, const Change& change, const To& to) {
  __m256 out[4];
  transpose_quads(_mm256_loadu_ps(from(0)), _mm256_loadu_ps(from(1)), _mm256_loadu_ps(from(2)),
                  _mm256_loadu_ps(from(3)), out);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    _mm_storeu_ps(to(c), change(c, _mm256_castps256_ps128(out[c])));
    _mm_storeu_ps(to(c + 4), change(c + 4, _mm256_extractf128_ps(out[c], 1)));
  }
}
#endif

/// to(c)[r] = change(c, from(r)[c]) for 0 <= r < rows, 0 <= c < cols; `change` takes vectors, too.
template <class T, class From, class Change, class To>
FUSED_ATTENTION_INLINE void transpose(int rows, int cols, const From& from, const Change& change,
                                      const To& to) {
  int r = 0;
  int c = 0;
  const auto from_here = [&](int i) FUSED_ATTENTION_LAMBDA { return from(r + i) + c; };
  const auto change_here = [&](int i, auto x) FUSED_ATTENTION_LAMBDA { return change(c + i, x); };
  const auto to_here = [&](int i) FUSED_ATTENTION_LAMBDA { return to(c + i) + r; };
  const auto finish = [&](int count) FUSED_ATTENTION_LAMBDA {
    for (; c < cols; ++c) {
      for (int i = 0; i < count; ++i) to_here(0)[i] = change(c, *from_here(i));
    }
  };
  if constexpr (sizeof(T) == sizeof(float)) {
#if FUSED_ATTENTION_VECTOR_BYTES >= 32
    for (; r + 8 <= rows; r += 8) {
      for (c = 0; c + 4 <= cols; c += 4) transpose_8x4(from_here, change_here, to_here);
      finish(8);
    }
#endif
    for (; r + 4 <= rows; r += 4) {
      c = 0;
#if FUSED_ATTENTION_VECTOR_BYTES >= 32
      for (; c + 8 <= cols; c += 8) transpose_4x8(from_here, change_here, to_here);
#endif
      for (; c + 4 <= cols; c += 4) transpose_4x4(from_here, change_here, to_here);
      finish(4);
    }
  }
  c = 0;
  finish(rows - r);
}

FUSED_ATTENTION_END_ISA_NAMESPACE
