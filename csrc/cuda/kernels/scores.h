// Scores of a warp's rows in accumulator fragments, and what hides some of them.
#pragma once

#include "../../core/mask.h"
#include "block.h"
#include "tile.h"

namespace fused_attention::cuda {

constexpr float kInfinity = __builtin_inff();
constexpr float kLargest = 0x1.fffffep127F;

/// Row of a lane's accumulator registers 0, 1 (half 0) and 2, 3 (half 1), and column of register 0:
/// see mma_m16n8k16.
FUSED_ATTENTION_DEVICE int fragment_row(int half) { return thread_index() % kWarp / 4 + half * 8; }
FUSED_ATTENTION_DEVICE int fragment_column() { return thread_index() % 4 * 2; }

/// kM 16-row fragments by kN 8-column fragments.
template <int kM, int kN>
struct Accumulator {
  float value[kM][kN][4];

  FUSED_ATTENTION_DEVICE void clear() {
    FUSED_ATTENTION_UNROLL
    for (int m = 0; m < kM; ++m) {
      FUSED_ATTENTION_UNROLL
      for (int n = 0; n < kN; ++n) {
        FUSED_ATTENTION_UNROLL
        for (int i = 0; i < 4; ++i) value[m][n][i] = 0;
      }
    }
  }
  FUSED_ATTENTION_DEVICE void scale(float factor) {
    FUSED_ATTENTION_UNROLL
    for (int m = 0; m < kM; ++m) {
      FUSED_ATTENTION_UNROLL
      for (int n = 0; n < kN; ++n) {
        FUSED_ATTENTION_UNROLL
        for (int i = 0; i < 4; ++i) {
          value[m][n][i] = rounded_product(value[m][n][i], factor);
        }
      }
    }
  }
};

/// The rows of the calling warp: they begin at `first_row` of the block's.
template <class Table>
struct WarpRows {
  Table table;
  int first_row;

  FUSED_ATTENTION_DEVICE int row(int m, int half) const {
    return first_row + m * 16 + fragment_row(half);
  }
};

/// Scores of keys that the band hides become -inf, by selection: whatever they were. `tile`: the
/// tile's first key; keys from `seq_k` on do not exist.
template <int kM, int kN, class Rows>
FUSED_ATTENTION_DEVICE void hide_by_band(const BlockBand& band, int tile, int seq_k,
                                         const Rows& rows, Accumulator<kM, kN>& scores) {
  const int lane_tile = tile + fragment_column();
  FUSED_ATTENTION_UNROLL
  for (int m = 0; m < kM; ++m) {
    FUSED_ATTENTION_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int position = rows.table.position(rows.row(m, half));
      const int high = band.high + position < seq_k ? band.high + position : seq_k - 1;
      const int first = band.low + position - lane_tile;
      const int last = high - lane_tile;
      FUSED_ATTENTION_UNROLL
      for (int n = 0; n < kN; ++n) {
        FUSED_ATTENTION_UNROLL
        for (int i = 0; i < 2; ++i) {
          float& score = scores.value[m][n][half * 2 + i];
          const int key = n * 8 + i;
          score = key >= first && key <= last ? score : -kInfinity;
        }
      }
    }
  }
}

/// Adds a mask value to a score; -inf hides whatever the score is. A sum of finite values stays
/// finite: no finite number means "hidden". A score that overflowed to -inf stays so.
template <class T>
FUSED_ATTENTION_DEVICE T add_mask(T score, T mask) {
  constexpr T kLowest = sizeof(T) == 4 ? -static_cast<T>(kLargest) : T(-0x1.fffffffffffffp1023);
  const T sum = score + mask;
  const T finite = sum < kLowest && score >= kLowest ? kLowest : sum;
  return mask == -static_cast<T>(kInfinity) ? mask : finite;
}

}  // namespace fused_attention::cuda
