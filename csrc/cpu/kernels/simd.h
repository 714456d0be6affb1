// Vectors of one register, written with the compiler's vector extensions so that one source serves
// every ISA; intrinsics only where the extensions have no word for the instruction.
#pragma once

#include <cstdint>
#include <type_traits>

#include "isa.h"

#if defined(FUSED_ATTENTION_ISA_AVX2) || defined(FUSED_ATTENTION_ISA_AVX512)
#include <immintrin.h>
#endif

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float Type __attribute__((vector_size(FUSED_ATTENTION_VECTOR_BYTES)));
  typedef std::int32_t Bits __attribute__((vector_size(FUSED_ATTENTION_VECTOR_BYTES)));
};
template <>
struct VectorOf<double> {
  typedef double Type __attribute__((vector_size(FUSED_ATTENTION_VECTOR_BYTES)));
  typedef std::int64_t Bits __attribute__((vector_size(FUSED_ATTENTION_VECTOR_BYTES)));
};
template <class T>
using Vec = typename VectorOf<T>::Type;
template <class T>
using VecBits = typename VectorOf<T>::Bits;

template <class T>
constexpr int kLanes = FUSED_ATTENTION_VECTOR_BYTES / static_cast<int>(sizeof(T));

template <class T>
FUSED_ATTENTION_INLINE Vec<T> load(const T* p) {
  Vec<T> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <class T>
FUSED_ATTENTION_INLINE void store(T* p, Vec<T> v) {
  __builtin_memcpy(p, &v, sizeof v);
}

/// x in every lane (x - 0 is x for every x, so this is one broadcast).
template <class T>
FUSED_ATTENTION_INLINE Vec<T> splat(T x) {
  return x - Vec<T>{};
}

/// Sum over the lanes, halves first.
template <class T>
FUSED_ATTENTION_INLINE T sum_lanes(Vec<T> v) {
  T lane[kLanes<T>];
  __builtin_memcpy(lane, &v, sizeof v);
  for (int half = kLanes<T> / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}

/// a > b ? a : b, so b where either is NaN: the order of the operands decides whether NaN survives.
FUSED_ATTENTION_INLINE Vec<float> max_or_second(Vec<float> a, Vec<float> b) {
#if defined(FUSED_ATTENTION_ISA_AVX512)
  return _mm512_max_ps(a, b);
#elif defined(FUSED_ATTENTION_ISA_AVX2)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
FUSED_ATTENTION_INLINE Vec<double> max_or_second(Vec<double> a, Vec<double> b) {
#if defined(FUSED_ATTENTION_ISA_AVX512)
  return _mm512_max_pd(a, b);
#elif defined(FUSED_ATTENTION_ISA_AVX2)
  return _mm256_max_pd(a, b);
#else
  return a > b ? a : b;
#endif
}

/// Chains of dependent instructions, one for each vector, take turns in groups of this many: a
/// scheduler that waits for one chain would be full before it reaches the next.
constexpr int kInTurn = 4;

/// Calls f(i, count) for begin <= i < end in groups: count is a constant, kInTurn, or kLeast for
/// the rest, which is a multiple of it.
template <int kLeast = 1, class F>
FUSED_ATTENTION_INLINE void for_each_in_turn(int begin, int end, const F& f) {
  int i = begin;
  for (; i + kInTurn <= end; i += kInTurn) f(i, std::integral_constant<int, kInTurn>{});
  for (; i < end; i += kLeast) f(i, std::integral_constant<int, kLeast>{});
}

// exp by e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln(2) / 2, a minimax polynomial for 2 e^r (so
// that the factor left is 2^(n-1)): relative error 2e-9 (float, before rounding), 3e-18 (double).
// ln 2 is one number, not a high and a low part: its error (2e-9 |x| in float) stays below rounding
// wherever e^x is a weight that counts.
template <class T>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  static constexpr float kLog2E = 1.44269504F;
  static constexpr float kLn2 = 0.693147182F;
  static constexpr int kMantissaBits = 23;
  // 1.5 * 2^23 rounds to an integer; 126 biases n so that the low bits are the exponent of 2^(n-1).
  static constexpr float kRound = 12582912.0F + 126.0F;
  static constexpr float kLowest = -87.336545F;  // n = -126: the factor's exponent is 0, exactly 0
  static constexpr float kPolynomial[] = {2.0F,
                                          2.000000072689442F,
                                          0.9999998415017746F,
                                          0.333328401442F,
                                          0.0833364523786F,
                                          0.0167496481012F,
                                          0.0027673671485F};
};
template <>
struct ExpConstants<double> {
  static constexpr double kLog2E = 1.4426950408889634;
  static constexpr double kLn2 = 0.6931471805599453;
  static constexpr int kMantissaBits = 52;
  static constexpr double kRound = 6755399441055744.0 + 1022.0;
  static constexpr double kLowest = -708.3964185322641;
  static constexpr double kPolynomial[] = {2.0,
                                           2.0,
                                           1.0000000000000036,
                                           0.3333333333333234,
                                           0.08333333333298526,
                                           0.016666666667118902,
                                           0.0027777777902522408,
                                           0.00039682538864868876,
                                           4.9602972962567e-05,
                                           5.511524530404897e-06,
                                           5.526461644890509e-07,
                                           4.9988586691460926e-08};
};

/// e^x for x <= 0 (x slightly above 0 is fine), of N vectors at a time. NaN stays NaN. What would
/// be denormal is exactly 0: denormal weights are slow and worth nothing. exp(0) is exactly 1.
template <class T, int N>
FUSED_ATTENTION_INLINE void exp_nonpositive(Vec<T> (&x)[N]) {
  using Constants = ExpConstants<T>;
  constexpr int kDegree = sizeof(Constants::kPolynomial) / sizeof(T) - 1;
  Vec<T> rounded[N];
  Vec<T> p[N];
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
    x[i] = max_or_second(splat(Constants::kLowest), x[i]);
    rounded[i] = x[i] * Constants::kLog2E + Constants::kRound;
    x[i] -= (rounded[i] - Constants::kRound) * Constants::kLn2;
    p[i] = x[i] * Constants::kPolynomial[kDegree] + Constants::kPolynomial[kDegree - 1];
  }
#pragma GCC unroll 16
  for (int k = kDegree - 2; k >= 0; --k) {
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) p[i] = p[i] * x[i] + Constants::kPolynomial[k];
  }
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
    VecBits<T> bits;
    __builtin_memcpy(&bits, &rounded[i], sizeof bits);
    bits <<= Constants::kMantissaBits;
    Vec<T> factor;
    __builtin_memcpy(&factor, &bits, sizeof factor);
    x[i] = p[i] * factor;
  }
}
template <class T>
FUSED_ATTENTION_INLINE Vec<T> exp_nonpositive(Vec<T> x) {
  Vec<T> one[1] = {x};
  exp_nonpositive<T>(one);
  return one[0];
}

template <class T>
constexpr T kInfinity = static_cast<T>(__builtin_inf());

FUSED_ATTENTION_END_ISA_NAMESPACE
