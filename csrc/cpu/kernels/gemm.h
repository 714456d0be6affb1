// The micro-kernel: every product of the forward and the backward pass is this one.
#pragma once

#include <cstdint>

#include "simd.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

enum class Into { kOverwrite, kAdd, kScaleThenAdd };

/// C(m, :) = [C(m, :) [* scale]] + sum over k of A(k, m) * B(k, :), for 0 <= m < M, 0 <= k < depth,
/// with A(k, m) = a[k * AK + m * AM] broadcast, B(k, :) = b[k * ldb ...] and C(m, :) = c[m * ldc
/// ...] of NV vectors.
template <class T, int M, int NV, int AK, int AM, Into into>
FUSED_ATTENTION_INLINE void multiply_block(int depth, const T* a, const T* b, std::int64_t ldb,
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
      const Vec<T> factor = splat(a[k * AK + m * AM]);
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

/// C (groups * M rows of NV vectors) from A packed in groups of M: a[group][k][m].
template <class T, int M, int NV, Into into>
FUSED_ATTENTION_INLINE void multiply_groups(int groups, int depth, const T* a,
                                            std::int64_t group_stride, const T* b, T* c,
                                            const T* scale = nullptr) {
  constexpr int kWidth = NV * kLanes<T>;
  for (int g = 0; g < groups; ++g) {
    multiply_block<T, M, NV, M, 1, into>(depth, a + g * group_stride, b, kWidth,
                                         c + static_cast<std::int64_t>(g) * M * kWidth, kWidth,
                                         scale);
  }
}

/// C[m][0 .. vectors) += sum over k of A(k, m) B(k, :): the columns in blocks of NV vectors.
template <class T, int M, int NV, int AK, int AM>
FUSED_ATTENTION_INLINE void accumulate_columns(int depth, int vectors, const T* a, const T* b,
                                               std::int64_t ldb, T* c, std::int64_t ldc) {
  constexpr int L = kLanes<T>;
  int v = 0;
  for (; v + NV <= vectors; v += NV) {
    multiply_block<T, M, NV, AK, AM, Into::kAdd>(depth, a, b + v * L, ldb, c + v * L, ldc);
  }
  if constexpr (NV > 1) {
    if (v < vectors) {
      accumulate_columns<T, M, NV - 1, AK, AM>(depth, vectors - v, a, b + v * L, ldb, c + v * L,
                                               ldc);
    }
  }
}

FUSED_ATTENTION_END_ISA_NAMESPACE
