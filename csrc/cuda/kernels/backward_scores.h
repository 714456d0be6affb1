// The gradient of a score, from what a row's statistics rebuild.
#pragma once

#include "block.h"
#include "params.h"
#include "scores.h"

namespace fused_attention::cuda {

/// P. A hidden score's weight is 0 whatever the row holds.
template <class Exponent>
FUSED_ATTENTION_DEVICE float weight_of(const Exponent& exponent, const RowStatistics& row,
                                       float score) {
  return score == -kInfinity ? 0.0F : exponent.power(score, row.shift) * row.factor;
}

/// dS = P (dP - delta), and 0 for a hidden score, even if the others are NaN.
template <class Exponent>
FUSED_ATTENTION_DEVICE float score_gradient(const Exponent& exponent, const RowStatistics& row,
                                            float score, float weight_gradient) {
  return score == -kInfinity
             ? 0.0F
             : exponent.power(score, row.shift) * row.factor * (weight_gradient - row.delta);
}

}  // namespace fused_attention::cuda
