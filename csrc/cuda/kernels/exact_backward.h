// What rebuilds weights and their gradients in the backward kernels without tensor cores.
#pragma once

#include "exact_product.h"
#include "scores.h"

namespace fused_attention::cuda {

/// See RowStatistics.
template <class T>
struct ExactRowStatistics {
  T shift;
  T factor;
  T delta;
};

/// Those of the rows of a tile, in shared memory.
template <class T, int kRows>
struct ExactStatistics {
  static constexpr int kBytes = kRows * 3 * static_cast<int>(sizeof(T));

  SharedPtr base;

  FUSED_ATTENTION_DEVICE ExactRowStatistics<T> load(int row) const {
    return {load_shared<T>(at(0, row)), load_shared<T>(at(1, row)), load_shared<T>(at(2, row))};
  }
  FUSED_ATTENTION_DEVICE void store_weight(int row, T shift, T factor) const {
    store_shared(at(0, row), shift);
    store_shared(at(1, row), factor);
  }
  FUSED_ATTENTION_DEVICE void store(int row, const ExactRowStatistics<T>& x) const {
    store_weight(row, x.shift, x.factor);
    store_shared(at(2, row), x.delta);
  }

 private:
  FUSED_ATTENTION_DEVICE SharedPtr at(int which, int row) const {
    return base + (which * kRows + row) * static_cast<int>(sizeof(T));
  }
};

/// Between the kernels a row has four numbers, of which the last is unused.
template <class T>
FUSED_ATTENTION_DEVICE void store_exact_statistics(void* list, std::int64_t row,
                                                   const ExactRowStatistics<T>& x) {
  const GlobalPtr<T> to = GlobalPtr<T>(static_cast<T*>(list)) + row * 4;
  store_global(to, Pack<T, 2>{{x.shift, x.factor}});
  store_global(to + 2, Pack<T, 2>{{x.delta, 0}});
}
template <class T>
FUSED_ATTENTION_DEVICE ExactRowStatistics<T> load_exact_statistics_of(const void* list,
                                                                      std::int64_t row) {
  const GlobalPtr<const T> from = GlobalPtr<const T>(static_cast<const T*>(list)) + row * 4;
  const auto weight = load_global<Pack<T, 2>>(from);
  return {weight.value[0], weight.value[1], load_global<T>(from + 2)};
}

/// P, and -0 for a hidden score, which no weight is.
template <class T>
FUSED_ATTENTION_DEVICE T exact_weight(const ExactRowStatistics<T>& row, T score) {
  const T weight = exponential(score - row.shift) * row.factor;
  return score == -static_cast<T>(kInfinity) ? -T(0) : weight;
}

/// dS = P (dP - delta), and -0 for a hidden score even if the others are NaN; a sum with +0 is
/// never -0.
template <class T>
FUSED_ATTENTION_DEVICE T exact_score_gradient(const ExactRowStatistics<T>& row, T score,
                                              T weight_gradient) {
  const T gradient =
      rounded_product(exponential(score - row.shift) * row.factor, weight_gradient - row.delta) +
      T(0);
  return score == -static_cast<T>(kInfinity) ? -T(0) : gradient;
}

}  // namespace fused_attention::cuda
