// What the operands of the products are made of.
#pragma once

#include <cstdint>

#include "isa.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// Numbers, or pairs of them (bf16_pairs.h), of which a step of the micro-kernel multiplies and
/// adds kDepth at once.
template <class E>
struct ElementTraits {
  using Scalar = E;  // of the sums
  static constexpr int kDepth = 1;
};
template <class E>
using ScalarOf = typename ElementTraits<E>::Scalar;

/// Steps of a product over n numbers.
template <class E>
FUSED_ATTENTION_INLINE constexpr std::int64_t steps_of(std::int64_t n) {
  return (n + ElementTraits<E>::kDepth - 1) / ElementTraits<E>::kDepth;
}

template <class V>
FUSED_ATTENTION_INLINE V multiply_add(V a, V b, V sum) {
  return sum + a * b;
}

FUSED_ATTENTION_END_ISA_NAMESPACE

#if defined(FUSED_ATTENTION_ISA_AVX512_BF16)
#include "bf16_pairs.h"
#endif
