// The micro-kernel: every product of the forward and the backward pass is this one.
#pragma once

#include <cstdint>

#include "convert.h"
#include "element.h"
#include "simd.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

enum class Into { kOverwrite, kScaleAndOverwrite, kAdd, kScaleThenAdd };

/// The broadcast operand of a product: A(k, m) of group g is data[g * group + k * k_stride + m *
/// m_stride]. Strides that are constants where this is made are constants in the micro-kernel.
template <class E>
struct Factors {
  const E* data;
  std::int64_t group;
  std::int64_t k_stride;
  std::int64_t m_stride;
};

/// C(m, :) = [C(m, :) [* scale]] + sum over k of A(k, m) * B(k, :), for 0 <= m < M, 0 <= k < depth,
/// with A of one group, B(k, :) = b[k * ldb ...] and C(m, :) = c[m * ldc ...] of NV vectors. B may
/// be stored in half precision where A is float. `scale` is a row of C's width, but for
/// kScaleAndOverwrite, C = scale * sum, one number.
template <class E, int M, int NV, Into into, class B>
FUSED_ATTENTION_INLINE void multiply_block(int depth, Factors<E> a, const B* b, std::int64_t ldb,
                                           ScalarOf<E>* c, std::int64_t ldc,
                                           const ScalarOf<E>* scale = nullptr) {
  using T = ScalarOf<E>;
  constexpr int L = kLanes<T>;
  Vec<T> sum[M][NV];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < NV; ++v) {
      if constexpr (into == Into::kOverwrite || into == Into::kScaleAndOverwrite) {
        sum[m][v] = Vec<T>{};
      } else if constexpr (into == Into::kAdd) {
        sum[m][v] = load(c + m * ldc + v * L);
      } else {
        sum[m][v] = load(c + m * ldc + v * L) * load(scale + v * L);
      }
    }
  }
#pragma GCC unroll 2
  for (int k = 0; k < depth; ++k) {
    decltype(load(b)) row[NV];
#pragma GCC unroll 16
    for (int v = 0; v < NV; ++v) row[v] = load(b + k * ldb + v * L);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const auto factor = splat(a.data[k * a.k_stride + m * a.m_stride]);
#pragma GCC unroll 16
      for (int v = 0; v < NV; ++v) sum[m][v] = multiply_add(factor, row[v], sum[m][v]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < NV; ++v) {
      if constexpr (into == Into::kScaleAndOverwrite) sum[m][v] *= splat(*scale);
      store(c + m * ldc + v * L, sum[m][v]);
    }
  }
}

/// C (groups * M rows of NV vectors), B and C without gaps between their rows.
template <class E, int M, int NV, Into into>
FUSED_ATTENTION_INLINE void multiply_groups(int groups, int depth, Factors<E> a, const E* b,
                                            ScalarOf<E>* c, const ScalarOf<E>* scale = nullptr) {
  constexpr int kWidth = NV * kLanes<ScalarOf<E>>;
  for (int g = 0; g < groups; ++g) {
    multiply_block<E, M, NV, into>(depth, a, b, kWidth, c, kWidth, scale);
    a.data += a.group;
    c += M * kWidth;
  }
}

/// C(m, 0 .. vectors) += sum over k of A(k, m) B(k, :): the columns in blocks of NV vectors.
template <class E, int M, int NV, class B>
FUSED_ATTENTION_INLINE void accumulate_columns(int depth, int vectors, Factors<E> a, const B* b,
                                               std::int64_t ldb, ScalarOf<E>* c, std::int64_t ldc) {
  constexpr int L = kLanes<ScalarOf<E>>;
  int v = 0;
  for (; v + NV <= vectors; v += NV) {
    multiply_block<E, M, NV, Into::kAdd>(depth, a, b + v * L, ldb, c + v * L, ldc);
  }
  if constexpr (NV > 1) {
    if (v < vectors) {
      accumulate_columns<E, M, NV - 1>(depth, vectors - v, a, b + v * L, ldb, c + v * L, ldc);
    }
  }
}

FUSED_ATTENTION_END_ISA_NAMESPACE
