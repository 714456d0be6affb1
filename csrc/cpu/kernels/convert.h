// Rows between storage (fp32, fp64, bf16, fp16, any stride) and the computing type.
#pragma once

#include <cstdint>

#include "../../core/problem.h"
#include "simd.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

using core::DType;

template <class To, class From>
FUSED_ATTENTION_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

FUSED_ATTENTION_INLINE float from_bfloat16(std::uint16_t x) {
  return bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

FUSED_ATTENTION_INLINE std::uint16_t to_bfloat16(float x) {
  const auto bits = bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  // Rounding could carry a NaN's mantissa away: keep its sign and make it quiet.
  return static_cast<std::uint16_t>(x != x ? (bits >> 16) | 0x40U : rounded);
}

FUSED_ATTENTION_INLINE float from_float16(std::uint16_t x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x & 0x8000U) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(x & 0x7FFFU) << 13;
  constexpr std::uint32_t kRebias = 112U << 23;
  // A subnormal is its mantissa times 2^-24. No denormal float on the way: the caller's mode may
  // read those as 0.
  float value = bit_cast<float>(magnitude + kRebias);
  if (magnitude < 0x00800000U)
    value = bit_cast<float>(magnitude + kRebias + 0x00800000U) - 0x1p-14F;
  if (magnitude >= 0x0F800000U) value = bit_cast<float>(magnitude | 0x7F800000U);
  return bit_cast<float>(bit_cast<std::uint32_t>(value) | sign);
}

FUSED_ATTENTION_INLINE std::uint16_t to_float16(float x) {
  const auto bits = bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // >= 65520
  if (magnitude < 0x38800000U) {
    // Subnormal: adding 0.5 rounds to a multiple of 2^-24, whose count is the mantissa.
    const float shifted = bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - 0x38000000U;
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

typedef std::uint16_t HalfVec __attribute__((vector_size(FUSED_ATTENTION_VECTOR_BYTES / 2)));
typedef std::uint32_t WordVec __attribute__((vector_size(FUSED_ATTENTION_VECTOR_BYTES)));

FUSED_ATTENTION_INLINE HalfVec load_half(const std::uint16_t* p) {
  HalfVec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

/// Intrinsics, as g++ makes five instructions of the conversion of a vector's elements.
FUSED_ATTENTION_INLINE Vec<float> widen_bfloat16(const std::uint16_t* p) {
#if defined(FUSED_ATTENTION_ISA_AVX512)
  const auto words = bit_cast<WordVec>(_mm512_cvtepu16_epi32(bit_cast<__m256i>(load_half(p))));
#elif defined(FUSED_ATTENTION_ISA_AVX2)
  const auto words = bit_cast<WordVec>(_mm256_cvtepu16_epi32(bit_cast<__m128i>(load_half(p))));
#else
  const auto words = __builtin_convertvector(load_half(p), WordVec);
#endif
  return bit_cast<Vec<float>>(words << 16);
}

FUSED_ATTENTION_INLINE void narrow_bfloat16(std::uint16_t* p, Vec<float> v) {
  const auto bits = bit_cast<WordVec>(v);
  const WordVec rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const WordVec quiet = (bits >> 16) | 0x40U;
  const HalfVec half = __builtin_convertvector(v != v ? quiet : rounded, HalfVec);
  __builtin_memcpy(p, &half, sizeof half);
}

FUSED_ATTENTION_INLINE Vec<float> widen_float16(const std::uint16_t* p) {
#if defined(FUSED_ATTENTION_ISA_AVX512)
  return _mm512_cvtph_ps(bit_cast<__m256i>(load_half(p)));
#elif defined(FUSED_ATTENTION_ISA_AVX2)
  return _mm256_cvtph_ps(bit_cast<__m128i>(load_half(p)));
#else
  Vec<float> v;
  for (int i = 0; i < kLanes<float>; ++i) v[i] = from_float16(p[i]);
  return v;
#endif
}

FUSED_ATTENTION_INLINE void narrow_float16(std::uint16_t* p, Vec<float> v) {
#if defined(FUSED_ATTENTION_ISA_AVX512)
  const __m256i half = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __builtin_memcpy(p, &half, sizeof half);
#elif defined(FUSED_ATTENTION_ISA_AVX2)
  const __m128i half = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __builtin_memcpy(p, &half, sizeof half);
#else
  for (int i = 0; i < kLanes<float>; ++i) p[i] = to_float16(v[i]);
#endif
}

/// Elements as they are stored, for code that reads them where they are.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};
FUSED_ATTENTION_INLINE Vec<float> load(const BFloat16* p) { return widen_bfloat16(&p->bits); }
FUSED_ATTENTION_INLINE Vec<float> load(const Float16* p) { return widen_float16(&p->bits); }

/// A double that is finite stays finite as float: a mask of finfo(float64).min hides nothing.
FUSED_ATTENTION_INLINE float narrow_finite(double x) {
  constexpr double kMax = 0x1.fffffep127;
  if (x > kMax && x < __builtin_inf()) return static_cast<float>(kMax);
  if (x < -kMax && x > -__builtin_inf()) return static_cast<float>(-kMax);
  return static_cast<float>(x);
}

FUSED_ATTENTION_INLINE void convert_element(float x, float& to) { to = x; }
FUSED_ATTENTION_INLINE void convert_element(float x, double& to) { to = x; }
FUSED_ATTENTION_INLINE void convert_element(double x, float& to) { to = narrow_finite(x); }
FUSED_ATTENTION_INLINE void convert_element(double x, double& to) { to = x; }

template <class From, class T>
FUSED_ATTENTION_INLINE void load_strided(const From* from, std::int64_t stride, int n, T* to) {
  for (int i = 0; i < n; ++i) convert_element(from[i * stride], to[i]);
}

template <class T, class Decode>
FUSED_ATTENTION_INLINE void load_strided_half(const std::uint16_t* from, std::int64_t stride, int n,
                                              T* to, Decode decode) {
  for (int i = 0; i < n; ++i) to[i] = decode(from[i * stride]);
}

/// to[i] = element `offset + i * stride` of `data`, 0 <= i < n, for a float type.
template <class T>
void load_row(DType dtype, const void* data, std::int64_t offset, std::int64_t stride, int n,
              T* to) {
  switch (dtype) {
    case DType::kFloat32: {
      const float* from = static_cast<const float*>(data) + offset;
      if constexpr (sizeof(T) == sizeof(float)) {
        if (stride == 1) {
          __builtin_memcpy(to, from, sizeof(float) * static_cast<std::size_t>(n));
          return;
        }
      }
      load_strided(from, stride, n, to);
      return;
    }
    case DType::kFloat64: {
      load_strided(static_cast<const double*>(data) + offset, stride, n, to);
      return;
    }
    case DType::kBFloat16: {
      const auto* from = static_cast<const std::uint16_t*>(data) + offset;
      int i = 0;
      if constexpr (sizeof(T) == sizeof(float)) {
        for (; stride == 1 && i + kLanes<float> <= n; i += kLanes<float>) {
          store(to + i, widen_bfloat16(from + i));
        }
      }
      load_strided_half(from + i * stride, stride, n - i, to + i, from_bfloat16);
      return;
    }
    case DType::kFloat16: {
      const auto* from = static_cast<const std::uint16_t*>(data) + offset;
      int i = 0;
      if constexpr (sizeof(T) == sizeof(float)) {
        for (; stride == 1 && i + kLanes<float> <= n; i += kLanes<float>) {
          store(to + i, widen_float16(from + i));
        }
      }
      load_strided_half(from + i * stride, stride, n - i, to + i, from_float16);
      return;
    }
    case DType::kBool:
      return;
  }
}

/// The dtype whose elements are stored as T computes with them.
template <class T>
constexpr DType kStoredAs = sizeof(T) == sizeof(float) ? DType::kFloat32 : DType::kFloat64;

/// The row as in load_row: where it is if it is stored as T computes, else converted in `buffer`.
template <class T>
FUSED_ATTENTION_INLINE const T* read_row(DType dtype, const void* data, std::int64_t offset,
                                         std::int64_t stride, int n, T* buffer) {
  if (dtype == kStoredAs<T> && stride == 1) return static_cast<const T*>(data) + offset;
  load_row(dtype, data, offset, stride, n, buffer);
  return buffer;
}

/// Element `offset + i * stride` of `data` = from[i], rounded to nearest even.
template <class T>
void store_row(DType dtype, void* data, std::int64_t offset, std::int64_t stride, int n,
               const T* from) {
  switch (dtype) {
    case DType::kFloat32: {
      float* to = static_cast<float*>(data) + offset;
      if constexpr (sizeof(T) == sizeof(float)) {
        if (stride == 1) {
          __builtin_memcpy(to, from, sizeof(float) * static_cast<std::size_t>(n));
          return;
        }
      }
      for (int i = 0; i < n; ++i) to[i * stride] = static_cast<float>(from[i]);
      return;
    }
    case DType::kFloat64: {
      double* to = static_cast<double*>(data) + offset;
      for (int i = 0; i < n; ++i) to[i * stride] = static_cast<double>(from[i]);
      return;
    }
    case DType::kBFloat16: {
      auto* to = static_cast<std::uint16_t*>(data) + offset;
      int i = 0;
      if constexpr (sizeof(T) == sizeof(float)) {
        for (; stride == 1 && i + kLanes<float> <= n; i += kLanes<float>) {
          narrow_bfloat16(to + i, load(from + i));
        }
      }
      for (; i < n; ++i) to[i * stride] = to_bfloat16(static_cast<float>(from[i]));
      return;
    }
    case DType::kFloat16: {
      auto* to = static_cast<std::uint16_t*>(data) + offset;
      int i = 0;
      if constexpr (sizeof(T) == sizeof(float)) {
        for (; stride == 1 && i + kLanes<float> <= n; i += kLanes<float>) {
          narrow_float16(to + i, load(from + i));
        }
      }
      for (; i < n; ++i) to[i * stride] = to_float16(static_cast<float>(from[i]));
      return;
    }
    case DType::kBool:
      return;
  }
}

FUSED_ATTENTION_END_ISA_NAMESPACE
