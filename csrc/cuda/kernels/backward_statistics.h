// What rebuilds the weights of the rows of a block of dQ.
#pragma once

#include "../../core/online_softmax.h"
#include "block.h"
#include "params.h"
#include "scores.h"
#include "softmax.h"

namespace fused_attention::cuda {

template <class C>
FUSED_ATTENTION_DEVICE DifferenceExponent exponent_of(const BackwardParams& params) {
  if constexpr (C::kGeneral) {
    return {};
  } else {
    return {params.scale, params.scale_log2};
  }
}

/// delta and, from LSE, shift and factor of each row of the block: a warp reads its own 16 rows,
/// one after the other. Returns whether the calling lane found an LSE that is too coarse to rebuild
/// weights from.
template <class C>
FUSED_ATTENTION_DEVICE bool load_statistics(const BackwardParams& params,
                                            const typename C::Table& table, int first_row,
                                            SharedPtr statistics) {
  using E = typename C::Element;
  const core::Problem& problem = params.call.problem;
  const BlockRows rows = table.rows();
  const int lane = thread_index() % kWarp;
  const auto base = [](const core::ConstOperand& x) {
    return GlobalPtr<const E>(static_cast<const E*>(x.data));
  };
  const core::ConstOperand& output = params.call.output;
  const core::ConstOperand& grad = params.call.grad_output;
  bool coarse = false;
  FUSED_ATTENTION_NO_UNROLL
  for (int row = first_row; row < first_row + 16; ++row) {
    RowStatistics result{kInfinity, 0, 0, 0};
    if (row < rows.count) {
      const RowPlace place = table.place(row);
      const GlobalPtr<const E> o = base(output) + row_offset(output, rows, place);
      const GlobalPtr<const E> g = base(grad) + row_offset(grad, rows, place);
      FUSED_ATTENTION_NO_UNROLL
      for (int column = lane; column < problem.sizes.dim_v; column += kWarp) {
        result.delta += to_float(load_global<E>(o + column * output.stride_d)) *
                        to_float(load_global<E>(g + column * grad.stride_d));
      }
      const std::int64_t at = row_index(problem.sizes, rows, place);
      const GlobalPtr<const float> lse(static_cast<const float*>(params.call.logsumexp));
      const float logsumexp = load_global<float>(lse + at);
      // A row that sees nothing keeps shift = inf: all its weights are 0.
      if (logsumexp != -kInfinity) {
        result.shift = exponent_of<C>(params).shift_of_logsumexp(logsumexp);
        result.factor = 1;
      }
      coarse |= core::logsumexp_is_coarse(logsumexp);
    }
    FUSED_ATTENTION_UNROLL
    for (int mask = 1; mask < kWarp; mask *= 2) result.delta += shuffle_xor(result.delta, mask);
    if (row < rows.count && params.call.grad_logsumexp != nullptr) {
      const GlobalPtr<const float> d(static_cast<const float*>(params.call.grad_logsumexp));
      result.delta -= load_global<float>(d + row_index(problem.sizes, rows, table.place(row)));
    }
    if (lane == 0) store_shared(statistics + row * 16, result);
  }
  return coarse;
}

}  // namespace fused_attention::cuda
