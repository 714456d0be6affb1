// The 16-bit types by their definition, independent of the library's own conversions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cuda/arch/types.h"

namespace fused_attention::emulator {

inline float value_of(cuda::BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

inline float half_by_definition(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const auto mantissa = static_cast<float>(bits & 1023);
  float magnitude = std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 0) magnitude = std::ldexp(mantissa, -24);
  if (exponent == 31) magnitude = mantissa != 0 ? NAN : INFINITY;
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

inline float value_of(cuda::Float16 x) {
  static const std::vector<float> table = [] {
    std::vector<float> values;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) values.push_back(half_by_definition(bits));
    return values;
  }();
  return table[x.bits];
}

/// Nearest number, ties to even; NaN stays NaN, and what is too large becomes infinite.
template <class E>
E nearest(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if constexpr (std::is_same_v<E, cuda::BFloat16>) {
    if (std::isnan(x)) return {0x7FFF};
    return {static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
  } else {
    const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
    if (std::isnan(x)) return {0x7FFF};
    const float magnitude = std::fabs(x);
    if (magnitude >= 65520) return {static_cast<std::uint16_t>(sign | 0x7C00)};
    int exponent = -14;
    if (magnitude >= 0x1p-14F) std::frexp(magnitude, &exponent), --exponent;
    // nearbyint rounds to even; a carry moves into the exponent by itself.
    const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
    const int first = magnitude >= 0x1p-14F ? (exponent + 14) * 1024 : 0;
    return {static_cast<std::uint16_t>(sign | (first + units))};
  }
}

}  // namespace fused_attention::emulator
