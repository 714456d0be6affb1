// The dense mask, bool or float, in any broadcast shape and any strides: read in place, tile by
// tile.
#pragma once

#include <cstdint>

#include "convert.h"
#include "pack.h"
#include "panel.h"
#include "simd.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// Adds a mask value to scores; -inf hides whatever the score is. A sum of finite values stays
/// finite: no finite number means "hidden". A score that overflowed to -inf stays so.
template <class T>
FUSED_ATTENTION_INLINE Vec<T> add_mask(Vec<T> score, Vec<T> mask) {
  constexpr T kLowest = sizeof(T) == 4 ? T(-0x1.fffffep127) : T(-0x1.fffffffffffffp1023);
  const Vec<T> sum = score + mask;
  const auto too_low = (sum < splat(kLowest)) & (score >= splat(kLowest));
  const Vec<T> finite = too_low ? splat(kLowest) : sum;
  return mask == splat(-kInfinity<T>) ? mask : finite;
}

/// Mask values of n keys as what is added to a score: 0 or -inf for a bool mask. Returns whether
/// any of them lets its key be seen.
template <class T>
bool load_mask_row(const core::DenseMask& mask, std::int64_t offset, int n, T* to) {
  if (mask.dtype == core::DType::kBool) {
    const auto* from = static_cast<const unsigned char*>(mask.data) + offset;
    unsigned char any = 0;
    const auto load_bools = [&](std::int64_t stride) {
      for (int j = 0; j < n; ++j) {
        any |= from[j * stride];
        to[j] = from[j * stride] != 0 ? T(0) : -kInfinity<T>;
      }
    };
    // The constant lets the compiler vectorise the usual case.
    if (mask.stride_k == 1) {
      load_bools(1);
    } else {
      load_bools(mask.stride_k);
    }
    return any != 0;
  }
  load_row(mask.dtype, mask.data, offset, mask.stride_k, n, to);
  bool any = false;
  for (int j = 0; j < n; ++j) any |= to[j] != -kInfinity<T>;
  return any;
}

/// Elements of the buffer of a MaskTile.
template <class C>
constexpr std::int64_t kMaskBuffer = 2 * static_cast<std::int64_t>(C::kRows) * (kTileKeys + 16);

/// Mask values of one panel and the keys of one span.
template <class T>
struct MaskTile {
  const T* values;    // [keys][rows], or [keys] where all rows have the same
  bool same_for_all;  // as with a padding mask
  bool any;           // whether any row sees any key
};

/// `buffer`: kMaskBuffer elements, which the result points into.
template <class C>
MaskTile<typename C::Scalar> load_mask_tile(const core::DenseMask& mask, const PanelRows<C>& rows,
                                            std::int64_t tile_first, TileSpan span,
                                            typename C::Scalar* buffer) {
  using T = typename C::Scalar;
  constexpr std::int64_t kLd = kTileKeys + 16;
  const int n = span.end - span.begin;
  const auto offset = [&](int lane) {
    return core::mask_offset(mask, rows.batch, rows.head[lane], rows.position[lane],
                             tile_first + span.begin);
  };
  bool same_for_all = true;
  for (int lane = 1; lane < rows.count; ++lane) same_for_all &= offset(lane) == offset(0);
  if (same_for_all) {
    const bool any = load_mask_row(mask, offset(0), n, buffer);
    return {buffer, true, any};
  }
  bool any = false;
  for (int lane = 0; lane < C::kRows; ++lane) {
    T* row = buffer + lane * kLd;
    if (lane < rows.count) {
      any |= load_mask_row(mask, offset(lane), n, row);
    } else {
      for (int j = 0; j < n; ++j) row[j] = -kInfinity<T>;
    }
  }
  T* by_key = buffer + C::kRows * kLd;
  if (any) transpose(C::kRows, n, buffer, kLd, by_key, C::kRows);
  return {by_key, false, any};
}

/// Applies a mask to the scores of span.begin <= j < span.end.
template <class C>
void apply_mask_tile(MaskTile<typename C::Scalar> mask, TileSpan span, typename C::Scalar* scores) {
  using T = typename C::Scalar;
  constexpr int L = kLanes<T>;
  for (int j = 0; j < span.end - span.begin; ++j) {
    for (int v = 0; v < C::kVectors; ++v) {
      T* at = scores + (span.begin + j) * C::kRows + v * L;
      const Vec<T> value =
          mask.same_for_all ? splat(mask.values[j]) : load(mask.values + j * C::kRows + v * L);
      store(at, add_mask<T>(load(at), value));
    }
  }
}

/// Whether the row of `lane` sees key j: the scalar form, for the rare paths.
template <class C>
FUSED_ATTENTION_INLINE bool sees(const core::Problem& problem, const PanelRows<C>& rows, int lane,
                                 std::int64_t j) {
  using T = typename C::Scalar;
  if (lane >= rows.count) return false;
  const auto keys = core::visible_keys(problem.band, rows.position[lane], problem.sizes.seq_k);
  if (j < keys.begin || j >= keys.end) return false;
  if (problem.mask.data == nullptr) return true;
  T value;
  load_mask_row(
      problem.mask,
      core::mask_offset(problem.mask, rows.batch, rows.head[lane], rows.position[lane], j), 1,
      &value);
  return value != -kInfinity<T>;
}

FUSED_ATTENTION_END_ISA_NAMESPACE
