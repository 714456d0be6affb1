// The micro-kernel: every product of the forward and the backward pass is this one.
#pragma once

#include <cstdint>

#include "convert.h"
#include "simd.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

enum class Into { kOverwrite, kAdd, kScaleThenAdd };

/// The broadcast operand of a product: A(k, m) of group g is data[g * group + k * k_stride + m *
/// m_stride]. Strides that are constants where this is made are constants in the micro-kernel.
template <class T>
struct Factors {
  const T* data;
  std::int64_t group;
  std::int64_t k_stride;
  std::int64_t m_stride;
};

/// C(m, :) = [C(m, :) [* scale]] + sum over k of A(k, m) * B(k, :), for 0 <= m < M, 0 <= k < depth,
/// with A of one group, B(k, :) = b[k * ldb ...] and C(m, :) = c[m * ldc ...] of NV vectors. B may
/// be stored in half precision.
template <class T, int M, int NV, Into into, class B>
FUSED_ATTENTION_INLINE void multiply_block(int depth, Factors<T> a, const B* b, std::int64_t ldb,
                                           T* c, std::int64_t ldc, const T* scale = nullptr) {
  constexpr int L = kLanes<T>;
  Vec<T> sum[M][NV];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < NV; ++v) {
      if constexpr (into == Into::kOverwrite) {
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
    Vec<T> row[NV];
#pragma GCC unroll 16
    for (int v = 0; v < NV; ++v) row[v] = load(b + k * ldb + v * L);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const Vec<T> factor = splat(a.data[k * a.k_stride + m * a.m_stride]);
#pragma GCC unroll 16
      for (int v = 0; v < NV; ++v) sum[m][v] += factor * row[v];
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int v = 0; v < NV; ++v) store(c + m * ldc + v * L, sum[m][v]);
  }
}

/// C (groups * M rows of NV vectors), B and C without gaps between their rows.
template <class T, int M, int NV, Into into>
FUSED_ATTENTION_INLINE void multiply_groups(int groups, int depth, Factors<T> a, const T* b, T* c,
                                            const T* scale = nullptr) {
  constexpr int kWidth = NV * kLanes<T>;
  for (int g = 0; g < groups; ++g) {
    multiply_block<T, M, NV, into>(depth, a, b, kWidth, c, kWidth, scale);
    a.data += a.group;
    c += M * kWidth;
  }
}

/// C(m, 0 .. vectors) += sum over k of A(k, m) B(k, :): the columns in blocks of NV vectors.
template <class T, int M, int NV, class B>
FUSED_ATTENTION_INLINE void accumulate_columns(int depth, int vectors, Factors<T> a, const B* b,
                                               std::int64_t ldb, T* c, std::int64_t ldc) {
  constexpr int L = kLanes<T>;
  int v = 0;
  for (; v + NV <= vectors; v += NV) {
    multiply_block<T, M, NV, Into::kAdd>(depth, a, b + v * L, ldb, c + v * L, ldc);
  }
  if constexpr (NV > 1) {
    if (v < vectors) {
      accumulate_columns<T, M, NV - 1>(depth, vectors - v, a, b + v * L, ldb, c + v * L, ldc);
    }
  }
}

FUSED_ATTENTION_END_ISA_NAMESPACE
