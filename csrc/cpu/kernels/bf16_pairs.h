// Products of bf16 in pairs, by vdpbf16ps: every lane takes two numbers of each operand, multiplies
// them, and adds both to a sum in fp32. Where a product sums over dims, pairs are neighbours as
// they are stored; where it sums over keys or rows, two of those are interleaved.
#pragma once

#include <cstdint>

#include "convert.h"
#include "element.h"
#include "simd.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// A bf16 in memory that holds pairs, too.
typedef std::uint16_t Half __attribute__((may_alias));

/// Two bf16: the first in the low half.
struct BFloat16Pair {
  typedef std::uint32_t Bits __attribute__((may_alias));
  Bits bits;
};
template <>
struct ElementTraits<BFloat16Pair> {
  using Scalar = float;
  static constexpr int kDepth = 2;
};

FUSED_ATTENTION_INLINE __m512bh load(const BFloat16Pair* p) {
  __m512bh v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
FUSED_ATTENTION_INLINE __m512bh splat(BFloat16Pair x) {
  return bit_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x.bits)));
}
FUSED_ATTENTION_INLINE Vec<float> multiply_add(__m512bh a, __m512bh b, Vec<float> sum) {
  return _mm512_dpbf16_ps(sum, a, b);
}

/// Two vectors as bf16, rounded to nearest even: those of `even`, then those of `odd`.
FUSED_ATTENTION_INLINE __m512bh narrow(Vec<float> even, Vec<float> odd) {
  return _mm512_cvtne2ps_pbh(odd, even);
}
/// {even[0], odd[0], even[1], ...} of that: a vector of pairs.
FUSED_ATTENTION_INLINE __m512bh interleave(__m512bh even_then_odd) {
  alignas(64) static constexpr std::uint16_t kOrder[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return bit_cast<__m512bh>(
      _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), bit_cast<__m512i>(even_then_odd)));
}
FUSED_ATTENTION_INLINE void store_pairs(void* p, __m512bh v) { __builtin_memcpy(p, &v, sizeof v); }

FUSED_ATTENTION_INLINE void store_halves(__m512bh v, void* low, void* high) {
  const auto bits = bit_cast<__m512i>(v);
  const __m256i halves[2] = {_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64(bits, 1)};
  __builtin_memcpy(low, &halves[0], sizeof halves[0]);
  __builtin_memcpy(high, &halves[1], sizeof halves[1]);
}

FUSED_ATTENTION_INLINE float from_pair(BFloat16Pair x, std::int64_t index) {
  return from_bfloat16(static_cast<std::uint16_t>(index % 2 == 0 ? x.bits : x.bits >> 16));
}

/// {even[i], odd[i]} of 16 or 8 elements of two rows of bf16.
FUSED_ATTENTION_INLINE __m512i interleave_16(const Half* even, const Half* odd) {
  const auto widen = [](const Half* p) FUSED_ATTENTION_LAMBDA {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  };
  return _mm512_or_si512(widen(even), _mm512_slli_epi32(widen(odd), 16));
}
FUSED_ATTENTION_INLINE __m256i interleave_8(const Half* even, const Half* odd) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even));
  const __m128i second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(odd));
  return _mm256_or_si256(_mm256_cvtepu16_epi32(first),
                         _mm256_slli_epi32(_mm256_cvtepu16_epi32(second), 16));
}

FUSED_ATTENTION_END_ISA_NAMESPACE
