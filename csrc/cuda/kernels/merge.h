// Output and LSE of rows whose keys were split, from what the chunks left, in their order.
#pragma once

#include <type_traits>

#include "../../core/online_softmax.h"
#include "../tile_config.h"
#include "partials.h"
#include "scores.h"

namespace fused_attention::cuda {

template <class C>
FUSED_ATTENTION_DEVICE void merge_body(const ForwardParams& params);

/// A warp merges a row.
template <class Element_>
struct MergeConfig {
  using Element = Element_;
  using Compute = std::conditional_t<sizeof(Element) == 8, double, float>;
  static constexpr MergeTile kTile = kMergeTile;
  static constexpr int kThreads = kTile.rows * kWarp;
  static constexpr int kWeightBytes = kTile.most_chunks * static_cast<int>(sizeof(Compute));
  static constexpr int kSharedBytes = kTile.rows * kWeightBytes;

  using Params = ForwardParams;
  FUSED_ATTENTION_DEVICE static void run(const Params& params) { merge_body<MergeConfig>(params); }
};

template <class E, class T>
FUSED_ATTENTION_DEVICE void store_element(GlobalPtr<E> to, T x) {
  if constexpr (sizeof(E) == 2) {
    store_global(to, from_float<E>(x));
  } else {
    store_global(to, x);
  }
}

template <class C>
FUSED_ATTENTION_DEVICE void merge_body(const ForwardParams& params) {
  using E = typename C::Element;
  using T = typename C::Compute;
  constexpr T kMinusInfinity = -static_cast<T>(kInfinity);
  const core::Sizes& sizes = params.call.problem.sizes;
  const int warp = thread_index() / kWarp;
  const int lane = thread_index() % kWarp;
  const std::int64_t row = linear_block_index() * C::kTile.rows + warp;
  if (row >= sizes.batch * sizes.heads_q * sizes.seq_q) return;
  const SharedPtr weights = shared_region(warp * C::kWeightBytes, C::kWeightBytes, "weights");
  const auto softmax_of = [&](int chunk) {
    const GlobalPtr<const T> from = partial_of<T>(params, row, chunk).softmax;
    return load_global<Pack<T, 2>>(from);
  };

  T max = kMinusInfinity;
  for (int chunk = lane; chunk < params.chunks; chunk += kWarp) {
    max = maximum(max, softmax_of(chunk).value[0]);
  }
  FUSED_ATTENTION_UNROLL
  for (int mask = 1; mask < kWarp; mask *= 2) max = maximum(max, shuffle_xor(max, mask));
  const T shift = max == kMinusInfinity ? T(0) : max;
  T total = 0;
  for (int chunk = lane; chunk < params.chunks; chunk += kWarp) {
    const auto softmax = softmax_of(chunk);
    const T weight = exponential(softmax.value[0] - shift);
    total = fused_multiply_add(weight, softmax.value[1], total);
    store_shared(weights + chunk * static_cast<int>(sizeof(T)), weight);
  }
  FUSED_ATTENTION_UNROLL
  for (int mask = 1; mask < kWarp; mask *= 2) total += shuffle_xor(total, mask);
  warp_sync();

  const std::int64_t head = row / sizes.seq_q;
  const std::int64_t batch = head / sizes.heads_q;
  const core::Operand& to = params.call.output;
  const GlobalPtr<E> output = GlobalPtr<E>(static_cast<E*>(to.data)) +
                              (batch * to.stride_b + (head - batch * sizes.heads_q) * to.stride_h +
                               (row - head * sizes.seq_q) * to.stride_s);
  const T factor = core::output_scale(total);
  FUSED_ATTENTION_NO_UNROLL
  for (std::int64_t column = lane; column < sizes.dim_v; column += kWarp) {
    const GlobalPtr<const T> first = partial_of<T>(params, row, 0).sums + column;
    T sum = 0;
    for (int chunk = 0; chunk < params.chunks; ++chunk) {
      const T x = load_global<T>(first + chunk * sizes.dim_v);
      const T weight = load_shared<T>(weights + chunk * static_cast<int>(sizeof(T)));
      sum = fused_multiply_add(weight, x, sum);
    }
    store_element(output + column * to.stride_d, sum * factor);
  }
  if (lane == 0) {
    const GlobalPtr<T> lse(static_cast<T*>(params.call.logsumexp));
    store_global(lse + row, core::logsumexp(max, total, [](T x) { return logarithm(x); }));
  }
}

}  // namespace fused_attention::cuda
