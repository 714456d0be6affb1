// The online softmax of core/online_softmax.h on accumulator fragments: four neighbouring lanes
// share a row.
#pragma once

#include "../../core/online_softmax.h"
#include "scores.h"

namespace fused_attention::cuda {

template <class T>
FUSED_ATTENTION_DEVICE T max_of_row(T x) {
  x = maximum(x, shuffle_xor(x, 1));
  return maximum(x, shuffle_xor(x, 2));
}
template <class T>
FUSED_ATTENTION_DEVICE T sum_of_row(T x) {
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}

constexpr float kLog2E = 0x1.715476p0F;

/// Policies for the exponents of weights, in base 2. `shift`: what shift_of makes of the maximum.
///
/// Exponents of plain scores: c s - c m with c = scale * log2(e) > 0, one instruction for the
/// argument. The rounding of c m is the same for the whole row, and cancels, as long as it is
/// small.
struct ScaledExponent {
  float scale_log2;

  /// Whether that rounding may be more than 2^-14: add_tile then takes the maximum away first.
  FUSED_ATTENTION_DEVICE bool is_far(float shift) const {
    constexpr float kFar = 1024;
    return shift > kFar || shift < -kFar;
  }

  FUSED_ATTENTION_DEVICE float shift_of(float max) const {
    return rounded_product(max, scale_log2);
  }
  FUSED_ATTENTION_DEVICE float exponent(float score, float shift) const {
    return fused_multiply_add(score, scale_log2, -shift);
  }
  /// That of what earlier weights, of an older maximum, are multiplied by: the difference of the
  /// rounded shifts, so that it is 0 where the maximum stays. `exponent` is off by the rounding of
  /// c m, which a long row would gather with every tile.
  FUSED_ATTENTION_DEVICE float rescaling(float old_max, float shift) const {
    return shift_of(old_max) - shift;
  }
  /// core::logsumexp for a maximum in base 2: one fma, where a product and a sum would round twice.
  FUSED_ATTENTION_DEVICE float logsumexp(float max, float sum) const {
    constexpr float kLn2 = 0x1.62e43p-1F;
    return sum == 0 ? -kInfinity : fused_multiply_add(shift_of(max), kLn2, logarithm(sum));
  }
};

/// The difference to the maximum comes first, so that nothing overflows with masks of the lowest
/// finite number, and nothing of a product with the maximum is rounded: in backward the shift of a
/// row comes from memory. Of complete scores unless a scale > 0 is given.
struct DifferenceExponent {
  float scale = 1;
  float scale_log2 = kLog2E;  // scale * log2(e)

  FUSED_ATTENTION_DEVICE static constexpr bool is_far(float) { return false; }
  FUSED_ATTENTION_DEVICE float shift_of_logsumexp(float logsumexp) const {
    return logsumexp / scale;
  }
  FUSED_ATTENTION_DEVICE float shift_of(float max) const { return max; }
  FUSED_ATTENTION_DEVICE float exponent(float score, float shift) const {
    return (score - shift) * scale_log2;
  }
  FUSED_ATTENTION_DEVICE float rescaling(float old_max, float shift) const {
    return exponent(old_max, shift);
  }
  FUSED_ATTENTION_DEVICE float logsumexp(float max, float sum) const {
    return core::logsumexp(max * scale, sum, [](float x) { return logarithm(x); });
  }
};

/// m and l of the rows that a lane takes part in. `sum` is of the lane's own columns until the end.
template <int kM>
struct RunningSoftmax {
  float max[kM][2];
  float sum[kM][2];

  FUSED_ATTENTION_DEVICE void clear() {
    FUSED_ATTENTION_UNROLL
    for (int m = 0; m < kM; ++m) {
      FUSED_ATTENTION_UNROLL
      for (int half = 0; half < 2; ++half) {
        max[m][half] = -kInfinity;
        sum[m][half] = 0;
      }
    }
  }

  /// Turns scores into weights and rescales the output that was summed before. A NaN score leaves m
  /// alone and makes its weight, and so l, NaN. Rows that have seen nothing keep m = -inf, l = 0.
  template <class Exponent, int kN, int kOutputN>
  FUSED_ATTENTION_DEVICE void add_tile(const Exponent& exponent, Accumulator<kM, kN>& scores,
                                       Accumulator<kM, kOutputN>& output) {
    FUSED_ATTENTION_UNROLL
    for (int m = 0; m < kM; ++m) {
      FUSED_ATTENTION_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int i = half * 2;
        float largest = max[m][half];
        FUSED_ATTENTION_UNROLL
        for (int n = 0; n < kN; ++n) {
          largest = maximum(largest, maximum(scores.value[m][n][i], scores.value[m][n][i + 1]));
        }
        largest = max_of_row(largest);
        float shift = largest == -kInfinity ? 0.0F : exponent.shift_of(largest);
        float rescaling = exponent.rescaling(max[m][half], shift);
        if (exponent.is_far(shift)) {
          shift = 0;
          rescaling = exponent.exponent(max[m][half] - largest, shift);
          FUSED_ATTENTION_UNROLL
          for (int n = 0; n < kN; ++n) {
            scores.value[m][n][i] -= largest;
            scores.value[m][n][i + 1] -= largest;
          }
        }
        max[m][half] = largest;
        const float rescale = exp2_approx(rescaling);
        float total = sum[m][half] * rescale;
        FUSED_ATTENTION_UNROLL
        for (int n = 0; n < kN; ++n) {
          FUSED_ATTENTION_UNROLL
          for (int c = i; c < i + 2; ++c) {
            const float weight = exp2_approx(exponent.exponent(scores.value[m][n][c], shift));
            scores.value[m][n][c] = weight;
            total += weight;
          }
        }
        sum[m][half] = total;
        FUSED_ATTENTION_UNROLL
        for (int n = 0; n < kOutputN; ++n) {
          output.value[m][n][i] *= rescale;
          output.value[m][n][i + 1] *= rescale;
        }
      }
    }
  }
};

}  // namespace fused_attention::cuda
