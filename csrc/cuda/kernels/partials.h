// What a chunk of a row's keys leaves where the keys are split (flash-decoding: Dao et al. 2023): m
// and l of the online softmax, and the sum of P V. LSE alone would not do: see
// core::logsumexp_is_coarse.
#pragma once

#include "block.h"
#include "params.h"

namespace fused_attention::cuda {

template <class T>
struct Partial {
  GlobalPtr<T> softmax;  // m, in units of the exponent of e, and l
  GlobalPtr<T> sums;     // Dv of them

  FUSED_ATTENTION_DEVICE void store_softmax(T max, T sum) const {
    store_global(softmax, Pack<T, 2>{{max, sum}});
  }
};

/// `row`: index of (B, Hq, Sq).
template <class T>
FUSED_ATTENTION_DEVICE Partial<T> partial_of(const ForwardParams& params, std::int64_t row,
                                             int chunk) {
  const core::Sizes& sizes = params.call.problem.sizes;
  const std::int64_t rows = sizes.batch * sizes.heads_q * sizes.seq_q;
  const std::int64_t index = row * params.chunks + chunk;
  const GlobalPtr<T> base(static_cast<T*>(params.partials));
  return {base + index * 2, base + (rows * params.chunks * 2 + index * sizes.dim_v)};
}

}  // namespace fused_attention::cuda
