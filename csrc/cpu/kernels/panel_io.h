// Rows of a panel between memory, where each lies somewhere, and the vector lanes.
#pragma once

#include <cstdint>

#include "convert.h"
#include "pack.h"
#include "panel.h"
#include "transpose.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

template <class C, class Operand>
FUSED_ATTENTION_INLINE std::int64_t row_offset(const Operand& x, const PanelRows<C>& rows,
                                               int lane) {
  return rows.batch * x.stride_b + rows.head[lane] * x.stride_h + rows.position[lane] * x.stride_s;
}

/// to[i] = factor * from[i] for i < n, 0 up to `length`.
template <class T>
FUSED_ATTENTION_INLINE void copy_padded(const T* from, int n, T factor, std::int64_t length,
                                        T* to) {
  constexpr int L = kLanes<T>;
  int i = 0;
  for (; i + L <= n; i += L) store(to + i, load(from + i) * factor);
  for (; i < n; ++i) to[i] = from[i] * factor;
  for (; i < length; ++i) to[i] = 0;
}

/// to[d][lane] = factor * x[row of lane][d], 0 in empty lanes. `buffer`: a padded row per lane.
template <class C>
void load_panel(core::DType dtype, const core::ConstOperand& x, const PanelRows<C>& rows, int dim,
                typename C::Scalar factor, typename C::Scalar* buffer, typename C::Scalar* to) {
  using T = typename C::Scalar;
  const std::int64_t ld = padded_length<T>(dim);
  const T* row[C::kRows];
  for (int lane = 0; lane < C::kRows; ++lane) {
    T* copy = buffer + lane * ld;
    if (lane < rows.count) {
      row[lane] = read_row(dtype, x.data, row_offset<C>(x, rows, lane), x.stride_d, dim, copy);
    } else {
      for (int d = 0; d < dim; ++d) copy[d] = 0;
      row[lane] = copy;
    }
  }
  transpose<T>(
      C::kRows, dim, [&](int lane) FUSED_ATTENTION_LAMBDA { return row[lane]; },
      [&](int, auto x) FUSED_ATTENTION_LAMBDA { return x * factor; },
      [&](int d) FUSED_ATTENTION_LAMBDA { return to + d * C::kRows; });
}

/// x[row of lane][d] = factor(lane) * from[d][lane], rounded to the dtype. A zero becomes +0: which
/// zero a sum of vanished products is depends on how many hidden ones were added, and so on the
/// cut.
template <class C, class Factor>
FUSED_ATTENTION_INLINE void store_panel(core::DType dtype, const core::Operand& x,
                                        const PanelRows<C>& rows, int dim, const Factor& factor,
                                        const typename C::Scalar* from,
                                        typename C::Scalar* buffer) {
  using T = typename C::Scalar;
  const std::int64_t ld = padded_length<T>(dim);
  const bool in_place = dtype == kStoredAs<T> && x.stride_d == 1;
  T* row[C::kRows];
  T scale[C::kRows];
  for (int lane = 0; lane < C::kRows; ++lane) {
    const bool direct = in_place && lane < rows.count;
    row[lane] =
        direct ? static_cast<T*>(x.data) + row_offset<C>(x, rows, lane) : buffer + lane * ld;
    scale[lane] = lane < rows.count ? factor(lane) : T(0);
  }
  // Four rows at a time, each from its first to its last element: whole cache lines are written.
  constexpr int kStep = C::kRows % 4 == 0 ? 4 : 2;
  for (int first = 0; first < C::kRows; first += kStep) {
    transpose<T>(
        dim, kStep, [&](int d) FUSED_ATTENTION_LAMBDA { return from + d * C::kRows + first; },
        [&](int lane, auto x) FUSED_ATTENTION_LAMBDA { return x * scale[first + lane] + T(0); },
        [&](int lane) FUSED_ATTENTION_LAMBDA { return row[first + lane]; });
  }
  for (int lane = 0; lane < rows.count && !in_place; ++lane) {
    store_row(dtype, x.data, row_offset<C>(x, rows, lane), x.stride_d, dim, row[lane]);
  }
}

FUSED_ATTENTION_END_ISA_NAMESPACE

#if defined(FUSED_ATTENTION_ISA_AVX512_BF16)
#include "pair_rows.h"
#endif
