// The dense mask, bool or float, in any broadcast shape and any strides: read in place, tile by
// tile, into shared memory as what is added to a score.
#pragma once

#include "scores.h"

namespace fused_attention::cuda {

FUSED_ATTENTION_DEVICE float narrow_finite(double x, float) {
  if (x > kLargest && x < static_cast<double>(kInfinity)) return kLargest;
  if (x < -kLargest && x > -static_cast<double>(kInfinity)) return -kLargest;
  return static_cast<float>(x);
}
FUSED_ATTENTION_DEVICE double narrow_finite(double x, double) { return x; }

/// The value at an element offset: 0 or -inf for a bool mask. What is finite stays finite.
template <class T = float>
FUSED_ATTENTION_DEVICE T load_mask(const core::DenseMask& mask, std::int64_t offset) {
  switch (mask.dtype) {
    case core::DType::kBool: {
      const GlobalPtr<const std::uint8_t> base(static_cast<const std::uint8_t*>(mask.data));
      return load_global<std::uint8_t>(base + offset) != 0 ? T(0) : -static_cast<T>(kInfinity);
    }
    case core::DType::kFloat32: {
      const GlobalPtr<const float> base(static_cast<const float*>(mask.data));
      return load_global<float>(base + offset);
    }
    case core::DType::kBFloat16: {
      const GlobalPtr<const BFloat16> base(static_cast<const BFloat16*>(mask.data));
      return to_float(load_global<BFloat16>(base + offset));
    }
    case core::DType::kFloat16: {
      const GlobalPtr<const Float16> base(static_cast<const Float16*>(mask.data));
      return to_float(load_global<Float16>(base + offset));
    }
    case core::DType::kFloat64: {
      const GlobalPtr<const double> base(static_cast<const double*>(mask.data));
      return narrow_finite(load_global<double>(base + offset), T());
    }
  }
  return 0;
}

/// Mask values of kRows rows and kKeys keys. The rows are padded: by 8, the four rows that half a
/// warp reads as pairs of keys lie in different banks; by 4, those that a warp reads for 8 keys and
/// 4 rows.
template <int kRows, int kKeys, int kPad = 8>
struct MaskTile {
  static constexpr int kRowBytes = (kKeys + kPad) * 4;
  static constexpr int kBytes = kRows * kRowBytes;
  static_assert(kKeys % 16 == 0);

  SharedPtr base;

  FUSED_ATTENTION_DEVICE SharedPtr at(int row, int key) const {
    return base + row * kRowBytes + key * 4;
  }
};

/// A thread's first row of a tile that it fills: one row after the other, but where a warp has two
/// rows of 16 keys they are two apart, or they would lie in the same banks.
template <int kKeys>
FUSED_ATTENTION_DEVICE int first_mask_row() {
  const int row = thread_index() / kKeys;
  return kKeys % kWarp == 0 ? row : (row & ~3) + (row & 1) * 2 + (row >> 1 & 1);
}

/// Fills the tile of the keys from `first` on; keys that do not exist are hidden. Returns whether
/// any row sees any key, as far as the calling thread has looked.
template <int kThreads, class Table, int kRows, int kKeys>
FUSED_ATTENTION_DEVICE bool load_mask_tile(const core::Problem& problem, Table table, int first,
                                           MaskTile<kRows, kKeys> tile) {
  static_assert(kThreads % kKeys == 0);
  constexpr int kRowsPerPass = kThreads / kKeys;
  static_assert(kKeys % kWarp == 0 || kRowsPerPass % 4 == 0);
  const core::DenseMask& mask = problem.mask;
  const BlockRows rows = table.rows();
  const int key = thread_index() % kKeys;
  const bool exists = first + key < problem.sizes.seq_k;
  bool any = false;
  FUSED_ATTENTION_NO_UNROLL
  for (int row = first_mask_row<kKeys>(); row < kRows; row += kRowsPerPass) {
    float value = -kInfinity;
    if (exists && row < rows.count) {
      const RowPlace place = table.place(row);
      value = load_mask(mask, core::mask_offset(mask, rows.batch, rows.first_head + place.head,
                                                rows.first_position + place.position, first + key));
    }
    any |= value != -kInfinity;
    store_shared(tile.at(row, key), value);
  }
  return any;
}

/// Adds a tile of mask values to a warp's scores.
template <int kM, int kN, int kRows, int kKeys, class Rows>
FUSED_ATTENTION_DEVICE void add_mask_tile(MaskTile<kRows, kKeys> tile, const Rows& rows,
                                          Accumulator<kM, kN>& scores) {
  static_assert(kN * 8 == kKeys);
  FUSED_ATTENTION_UNROLL
  for (int m = 0; m < kM; ++m) {
    FUSED_ATTENTION_UNROLL
    for (int half = 0; half < 2; ++half) {
      const SharedPtr row = tile.at(rows.row(m, half), fragment_column());
      FUSED_ATTENTION_UNROLL
      for (int n = 0; n < kN; ++n) {
        const auto pair = load_shared<Pack<float, 2>>(row + n * 8 * 4);
        FUSED_ATTENTION_UNROLL
        for (int i = 0; i < 2; ++i) {
          float& score = scores.value[m][n][half * 2 + i];
          score = add_mask(score, pair.value[i]);
        }
      }
    }
  }
}

}  // namespace fused_attention::cuda
