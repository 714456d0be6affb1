// Which keys a row sees.
//
// Causal, offset and window are one interval of keys per row (Band); everything else is a dense
// mask. A new structured mask belongs here, as another source of the interval.
#pragma once

#include <cstdint>

#include "host_device.h"
#include "problem.h"

namespace fused_attention::core {

/// Keys begin <= j < end.
struct KeyInterval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

FUSED_ATTENTION_CORE std::int64_t min64(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
FUSED_ATTENTION_CORE std::int64_t max64(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
FUSED_ATTENTION_CORE std::int64_t clamp64(std::int64_t x, std::int64_t low, std::int64_t high) {
  return min64(max64(x, low), high);
}
FUSED_ATTENTION_CORE std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// The band of `is_causal` (j <= i + offset) and of the window i + offset - left <= j <= i + offset
/// + right, where -1 means no limit. Any offset and any window are legal: sums saturate.
FUSED_ATTENTION_CORE Band make_band(bool is_causal, std::int64_t diagonal_offset,
                                    std::int64_t window_left, std::int64_t window_right,
                                    std::int64_t seq_q, std::int64_t seq_k) {
  constexpr std::int64_t kMin = INT64_MIN;
  constexpr std::int64_t kMax = INT64_MAX;
  const std::int64_t limit = seq_q + seq_k + 1;
  Band band{-limit, limit};
  if (window_left >= 0) {
    const bool low = diagonal_offset < kMin + window_left;
    band.lower = low ? kMin : diagonal_offset - window_left;
  }
  if (window_right >= 0) {
    const bool high = diagonal_offset > kMax - window_right;
    band.upper = high ? kMax : diagonal_offset + window_right;
  }
  if (is_causal) band.upper = min64(band.upper, diagonal_offset);
  band.lower = clamp64(band.lower, -limit, limit);
  band.upper = clamp64(band.upper, -limit, limit);
  return band;
}

/// Keys that row i sees through the band; empty intervals have begin >= end.
FUSED_ATTENTION_CORE KeyInterval visible_keys(const Band& band, std::int64_t i,
                                              std::int64_t seq_k) {
  return {max64(0, i + band.lower), min64(seq_k, i + band.upper + 1)};
}

/// Keys that at least one of the rows first <= i <= last sees (the band moves with the row, so this
/// is one interval).
FUSED_ATTENTION_CORE KeyInterval keys_of_any_row(const Band& band, std::int64_t first,
                                                 std::int64_t last, std::int64_t seq_k) {
  return {max64(0, first + band.lower), min64(seq_k, last + band.upper + 1)};
}

/// Keys that all of the rows first <= i <= last see.
FUSED_ATTENTION_CORE KeyInterval keys_of_every_row(const Band& band, std::int64_t first,
                                                   std::int64_t last, std::int64_t seq_k) {
  return {max64(0, last + band.lower), min64(seq_k, first + band.upper + 1)};
}

/// Rows begin <= i < end that see at least one of the keys first <= j <= last (one interval, too).
FUSED_ATTENTION_CORE KeyInterval rows_of_any_key(const Band& band, std::int64_t first,
                                                 std::int64_t last, std::int64_t seq_q) {
  return {max64(0, first - band.upper), min64(seq_q, last - band.lower + 1)};
}

/// Element offset of the dense mask at (b, h, i, j).
FUSED_ATTENTION_CORE std::int64_t mask_offset(const DenseMask& mask, std::int64_t b, std::int64_t h,
                                              std::int64_t i, std::int64_t j) {
  return b * mask.stride_b + h * mask.stride_h + i * mask.stride_q + j * mask.stride_k;
}

}  // namespace fused_attention::core
