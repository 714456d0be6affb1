// The gradient of a score, from what a row's statistics rebuild.
#pragma once

#include "block.h"
#include "params.h"
#include "scores.h"

namespace fused_attention::cuda {

/// P of a score that is not hidden.
template <class Exponent>
FUSED_ATTENTION_DEVICE float visible_weight(const Exponent& exponent, const RowStatistics& row,
                                            float score) {
  return exp2_approx(exponent.exponent(score, row.shift)) * row.factor;
}

/// P. A hidden score's weight is 0 whatever the row holds. `visible`: its visible_weight.
FUSED_ATTENTION_DEVICE float weight_of(float score, float visible) {
  return score == -kInfinity ? 0.0F : visible;
}

/// dS = P (dP - delta), and 0 for a hidden score, even if the others are NaN.
FUSED_ATTENTION_DEVICE float score_gradient(const RowStatistics& row, float score, float visible,
                                            float weight_gradient) {
  return score == -kInfinity ? 0.0F : visible * (weight_gradient - row.delta);
}

}  // namespace fused_attention::cuda
