// The vectorised online softmax: rows in lanes, so nothing is reduced across a register.
#pragma once

#include "panel.h"
#include "simd.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// Rows of weights, as operands: to[i][...] = weight[i].
template <class C, int N>
FUSED_ATTENTION_INLINE void store_weights(const Vec<typename C::Scalar> (&weight)[N],
                                          typename C::Scalar* to) {
  if constexpr (C::kPaired) {
#pragma GCC unroll 8
    for (int i = 0; i < N; i += 2, to += C::kRows) {
      store_pairs(to, interleave(narrow(weight[i], weight[i + 1])));
    }
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i, to += C::kRows) store(to, weight[i]);
  }
}

/// Appends a hidden key where a span's last pair lacks one.
template <class C>
FUSED_ATTENTION_INLINE void end_with_whole_pair(TileSpan& span, typename C::Scalar* scores) {
  using T = typename C::Scalar;
  if (span.end % 2 == 0) return;
  for (int v = 0; v < C::kRows; v += kLanes<T>) {
    store(scores + span.end * C::kRows + v, splat(-kInfinity<T>));
  }
  ++span.end;
}

/// Turns the scores of a tile into weights exp(score - m) in place, and carries m (`max`) and l
/// (`sum`) on; `alpha` = exp(old m - new m) rescales what was summed before. core/online_softmax.h.
///
/// A NaN score leaves m alone and makes its weight, and so l, NaN. Rows that have seen nothing keep
/// m = -inf and l = 0. Where operands are pairs, the weights of keys j and j + 1 are in row j / 2.
template <class C>
void softmax_tile(TileSpan span, typename C::Scalar* scores, typename C::Scalar* max,
                  typename C::Scalar* sum, typename C::Scalar* alpha) {
  using T = typename C::Scalar;
  constexpr int L = kLanes<T>;
  constexpr int V = C::kVectors;
  if constexpr (C::kPaired) end_with_whole_pair<C>(span, scores);
  // Two maxima per vector: one would wait for itself at every key.
  Vec<T> new_max[2][V];
  for (int v = 0; v < V; ++v) new_max[0][v] = new_max[1][v] = load(max + v * L);
  const T* row = scores + span.begin * C::kRows;
  for (int j = span.begin; j < span.end; ++j, row += C::kRows) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) new_max[0][v] = max_or_second(load(row + v * L), new_max[0][v]);
    if (++j == span.end) break;
    row += C::kRows;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) new_max[1][v] = max_or_second(load(row + v * L), new_max[1][v]);
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    const Vec<T> old_max = load(max + v * L);
    const Vec<T> largest = max_or_second(new_max[0][v], new_max[1][v]);
    const Vec<T> shift = largest == splat(-kInfinity<T>) ? Vec<T>{} : largest;
    const Vec<T> rescale = exp_nonpositive<T>(old_max - shift);
    Vec<T> total{};
    T* column = scores + v * L;
    const auto weigh = [&](int j, auto count) FUSED_ATTENTION_LAMBDA {
      constexpr int N = decltype(count)::value;
      Vec<T> weight[N];
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) weight[i] = load(column + (j + i) * C::kRows) - shift;
      exp_nonpositive<T>(weight);
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) total += weight[i];
      store_weights<C>(weight, column + j / ElementTraits<typename C::Element>::kDepth * C::kRows);
    };
    for_each_in_turn<ElementTraits<typename C::Element>::kDepth>(span.begin, span.end, weigh);
    store(max + v * L, largest);
    store(sum + v * L, load(sum + v * L) * rescale + total);
    store(alpha + v * L, rescale);
  }
}

FUSED_ATTENTION_END_ISA_NAMESPACE
