// The vectorised online softmax: rows in lanes, so nothing is reduced across a register.
#pragma once

#include "panel.h"
#include "simd.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// Turns the scores of a tile into weights exp(score - m) in place, and carries m (`max`) and l
/// (`sum`) on; `alpha` = exp(old m - new m) rescales what was summed before. core/online_softmax.h.
///
/// A NaN score leaves m alone and makes its weight, and so l, NaN. Rows that have seen nothing keep
/// m = -inf and l = 0.
template <class C>
void softmax_tile(TileSpan span, typename C::Scalar* scores, typename C::Scalar* max,
                  typename C::Scalar* sum, typename C::Scalar* alpha) {
  using T = typename C::Scalar;
  constexpr int L = kLanes<T>;
  for (int v = 0; v < C::kVectors; ++v) {
    T* column = scores + v * L;
    const Vec<T> old_max = load(max + v * L);
    Vec<T> new_max = old_max;
    for (int j = span.begin; j < span.end; ++j) {
      new_max = max_or_second(load(column + j * C::kRows), new_max);
    }
    const Vec<T> shift = new_max == splat(-kInfinity<T>) ? Vec<T>{} : new_max;
    const Vec<T> rescale = exp_nonpositive<T>(old_max - shift);
    Vec<T> total{};
    for (int j = span.begin; j < span.end; ++j) {
      const Vec<T> weight = exp_nonpositive<T>(load(column + j * C::kRows) - shift);
      store(column + j * C::kRows, weight);
      total += weight;
    }
    store(max + v * L, new_max);
    store(sum + v * L, load(sum + v * L) * rescale + total);
    store(alpha + v * L, rescale);
  }
}

FUSED_ATTENTION_END_ISA_NAMESPACE
