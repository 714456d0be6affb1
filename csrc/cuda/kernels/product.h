// The matrix products of a warp.
#pragma once

#include "scores.h"
#include "tile.h"

namespace fused_attention::cuda {

/// scores = A B^T: the warp's kM * 16 rows of A from `a` on, all rows of B, both in shared memory.
template <class E, int kColumns, int kM, int kN, class A, class B>
FUSED_ATTENTION_DEVICE void multiply_rows_by_rows(const A& a, const B& b,
                                                  Accumulator<kM, kN>& scores) {
  scores.clear();
  FUSED_ATTENTION_UNROLL
  for (int k = 0; k < kColumns; k += 16) {
    Fragment rows[kM];
    FUSED_ATTENTION_UNROLL
    for (int m = 0; m < kM; ++m) ldmatrix_x4(rows[m], a.at(m * 16, k));
    FUSED_ATTENTION_UNROLL
    for (int n = 0; n < kN; n += 2) {
      Fragment keys;
      ldmatrix_x4(keys, b.at(n * 8, k));
      FUSED_ATTENTION_UNROLL
      for (int m = 0; m < kM; ++m) {
        mma_m16n8k16<E>(scores.value[m][n], rows[m], keys[0], keys[1]);
        mma_m16n8k16<E>(scores.value[m][n + 1], rows[m], keys[2], keys[3]);
      }
    }
  }
}

/// Weights of kM * 16 rows and kK * 16 keys as A fragments.
template <int kM, int kK>
struct Weights {
  Fragment value[kM][kK];
};

/// Accumulator registers are A fragments as they lie, once packed.
template <class E, int kM, int kN>
FUSED_ATTENTION_DEVICE void pack_weights(const Accumulator<kM, kN>& from, Weights<kM, kN / 2>& to) {
  FUSED_ATTENTION_UNROLL
  for (int m = 0; m < kM; ++m) {
    FUSED_ATTENTION_UNROLL
    for (int k = 0; k < kN / 2; ++k) {
      FUSED_ATTENTION_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* pair = from.value[m][k * 2 + i / 2] + i % 2 * 2;
        to.value[m][k][i] = pack2<E>(pair[0], pair[1]);
      }
    }
  }
}

/// sums += W X: X's rows in shared memory.
template <class E, int kM, int kK, int kN, class X>
FUSED_ATTENTION_DEVICE void multiply_weights(const Weights<kM, kK>& weights, const X& x,
                                             Accumulator<kM, kN>& sums) {
  FUSED_ATTENTION_UNROLL
  for (int k = 0; k < kK; ++k) {
    FUSED_ATTENTION_UNROLL
    for (int n = 0; n < kN; n += 2) {
      Fragment columns;
      ldmatrix_x4_trans(columns, x.at(k * 16, n * 8));
      FUSED_ATTENTION_UNROLL
      for (int m = 0; m < kM; ++m) {
        mma_m16n8k16<E>(sums.value[m][n], weights.value[m][k], columns[0], columns[1]);
        mma_m16n8k16<E>(sums.value[m][n + 1], weights.value[m][k], columns[2], columns[3]);
      }
    }
  }
}

}  // namespace fused_attention::cuda
