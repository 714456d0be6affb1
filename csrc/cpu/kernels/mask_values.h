// Values of a dense mask, and the cheapest way to add them to scores.
#pragma once

#include <cstdint>

#include "convert.h"
#include "pack.h"
#include "simd.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// How the float values of a mask tile are added to scores: the cheapest way that its values allow.
/// -inf hides, whatever the score is. A sum of finite numbers stays finite: no finite number means
/// "hidden", and none makes a row NaN. A score that overflowed stays so.
enum class Adding {
  kPlain,    // all are finite, and too small for a sum to overflow
  kHiding,   // so are those that are not -inf
  kBounded,  // any
};

/// Times this, what is half a unit in the last place of the largest number or more overflows: less
/// than that changes no finite score to Inf.
template <class T>
constexpr T kToOverflow = sizeof(T) == 4 ? T(0x1p25) : T(0x1p54);

template <class T, Adding adding>
FUSED_ATTENTION_INLINE Vec<T> add_mask(Vec<T> score, Vec<T> mask) {
  Vec<T> sum = score + mask;
  if constexpr (adding == Adding::kPlain) return sum;
  if constexpr (adding == Adding::kBounded) {
    const Vec<T> most = splat(sizeof(T) == 4 ? T(0x1.fffffep127) : T(0x1.fffffffffffffp1023));
    const auto finite = (score >= -most) & (score <= most) & (mask <= most);
    const auto too_low = finite & (sum < -most);
    const auto too_high = finite & (sum > most);
    sum = too_high ? most : too_low ? -most : sum;
  }
  return mask == splat(-kInfinity<T>) ? mask : sum;
}

/// Mask values of n keys as what is added to a score, 0 or -inf for a bool mask: where they are, or
/// in `buffer`.
template <class T>
const T* read_mask_row(const core::DenseMask& mask, std::int64_t offset, int n, T* buffer) {
  if (mask.dtype != core::DType::kBool) {
    return read_row(mask.dtype, mask.data, offset, mask.stride_k, n, buffer);
  }
  const auto* from = static_cast<const unsigned char*>(mask.data) + offset;
  for (int j = 0; j < n; ++j) buffer[j] = from[j * mask.stride_k] != 0 ? T(0) : -kInfinity<T>;
  return buffer;
}

/// Whether all of n values of each row are -inf.
template <class T>
bool hides_all(const T* const* rows, int count, int n) {
  bool visible = false;
  for (int r = 0; r < count && !visible; ++r) {
    for (int j = 0; j < n; ++j) visible |= rows[r][j] != -kInfinity<T>;
  }
  return !visible;
}

/// By n values of each row.
template <class T>
Adding choose_adding(const T* const* rows, int count, int n) {
  FiniteCheck<T> all;
  for (int r = 0; r < count; ++r) {
    all.add(rows[r], n, [](int, auto x) FUSED_ATTENTION_LAMBDA { return x * kToOverflow<T>; });
  }
  if (all.all_finite()) return Adding::kPlain;
  FiniteCheck<T> shown;
  for (int r = 0; r < count; ++r) {
    shown.add(rows[r], n, [](int, auto x) FUSED_ATTENTION_LAMBDA {
      const auto nothing = decltype(x){};
      return (x == nothing - kInfinity<T> ? nothing : x) * kToOverflow<T>;
    });
  }
  return shown.all_finite() ? Adding::kHiding : Adding::kBounded;
}

FUSED_ATTENTION_END_ISA_NAMESPACE
