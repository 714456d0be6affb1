// The running softmax of one row: m = largest score so far, l = sum of exp(score - m).
// Milakov and Gimelshein 2018; Dao 2023 (FlashAttention-2), section 3.1.
#pragma once

#include "host_device.h"

namespace fused_attention::core {

/// -inf for a row that sees nothing (l == 0), NaN where a visible score was NaN. `log`: of a T.
template <class T, class Log>
FUSED_ATTENTION_CORE T logsumexp(T max, T sum, const Log& log) {
  return sum == 0 ? -static_cast<T>(__builtin_inf()) : max + log(sum);
}
FUSED_ATTENTION_CORE double logsumexp(double max, double sum) {
  return logsumexp(max, sum, [](double x) { return __builtin_log(x); });
}

/// Factor that turns the weighted sum of values into the output: 0 for a row that sees nothing.
template <class T>
FUSED_ATTENTION_CORE T output_scale(T sum) {
  return sum == 0 ? T(0) : T(1) / sum;
}

/// exp(score - LSE) is off by the rounding of LSE. From here on that error (|LSE| * 2^-24 in fp32)
/// is no longer small beside the rounding of the scores, and where |LSE| swallows the logarithm of
/// the sum it is a factor of n: such rows need m and l apart.
FUSED_ATTENTION_CORE bool logsumexp_is_coarse(double logsumexp) {
  const double magnitude = logsumexp < 0 ? -logsumexp : logsumexp;
  return magnitude > 128 && magnitude < __builtin_inf();
}

}  // namespace fused_attention::core
