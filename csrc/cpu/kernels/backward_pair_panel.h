// How a panel of the backward pass is filled where operands are pairs of bf16.
#pragma once

#include <cstdint>

#include "backward_panel.h"
#include "pair_rows.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// Sum of a[i] * b[i] over whole vectors of pairs.
FUSED_ATTENTION_INLINE float dot(const BFloat16Pair* a, const BFloat16Pair* b, std::int64_t pairs) {
  Vec<float> sum = {};
  for (std::int64_t i = 0; i < pairs; i += 16) sum = multiply_add(load(a + i), load(b + i), sum);
  return sum_lanes<float>(sum);
}

/// Rows of Q or dO as by_dim, [pair of dims][rows], and by_row, [pair of rows][D padded], in which
/// a row that is not finite is 0. `use(lane, row)`: the copy of a row that counts, of whole
/// vectors; `drop(lane)`: a row that is not finite.
template <class C, class Use, class Drop>
FUSED_ATTENTION_INLINE void fill_pairs(const core::ConstOperand& x, const PanelRows<C>& rows,
                                       int dim, const bool* counts, BFloat16Pair* copies,
                                       BFloat16Pair* by_dim, BFloat16Pair* by_row, const Use& use,
                                       const Drop& drop) {
  const int pairs = static_cast<int>(steps_of<BFloat16Pair>(dim));
  const std::int64_t ld = padded_length<float>(pairs);
  const int length = static_cast<int>(round_up(pairs, kLanes<float>));
  PairCheck check;
  for (int lane = 0; lane < C::kRows; ++lane) {
    BFloat16Pair* row = copies + lane * ld;
    if (!counts[lane]) {
      __builtin_memset(row, 0, sizeof(BFloat16Pair) * static_cast<std::size_t>(ld));
      continue;
    }
    copy_pairs(x.data, row_offset<C>(x, rows, lane), x.stride_d, dim, ld, row);
    check.add(row, length);
    use(lane, row);
  }
  transpose_pairs(
      C::kRows, pairs, [&](int lane) FUSED_ATTENTION_LAMBDA { return copies + lane * ld; },
      [&](int d) FUSED_ATTENTION_LAMBDA { return by_dim + d * C::kRows; });
  for (int lane = 0; lane < rows.count && !check.all_finite(); ++lane) {
    BFloat16Pair* row = copies + lane * ld;
    if (all_finite(row, length)) continue;
    __builtin_memset(row, 0, sizeof(BFloat16Pair) * static_cast<std::size_t>(ld));
    drop(lane);
  }
  const std::int64_t to_ld = padded_length<float>(dim);
  for (int lane = 0; lane < C::kRows; lane += 2) {
    const auto* even = reinterpret_cast<const Half*>(copies + lane * ld);
    const auto* odd = reinterpret_cast<const Half*>(copies + (lane + 1) * ld);
    for (int d = 0; d < dim; d += kLanes<float>) {
      const __m512i both = interleave_16(even + d, odd + d);
      __builtin_memcpy(by_row + lane / 2 * to_ld + d, &both, sizeof both);
    }
  }
}

/// As fill_panel, but queries are not scaled. `buffer`: a padded row for each lane, and one more.
template <class C>
void fill_pair_panel(const core::BackwardProblem& call, float* buffer,
                     const BackwardPanel<C>& panel) {
  const core::Sizes& sizes = call.problem.sizes;
  const PanelRows<C>& rows = *panel.rows;
  bool counts[C::kRows];
  for (int lane = 0; lane < C::kRows; ++lane) counts[lane] = start_row<C>(call, lane, panel);
  auto* copies = reinterpret_cast<BFloat16Pair*>(buffer);
  fill_pairs<C>(
      call.problem.query, rows, static_cast<int>(sizes.dim_qk), counts, copies,
      panel.queries_by_dim, panel.queries, [](int, const BFloat16Pair*) {}, [](int) {});

  const int dim_v = static_cast<int>(sizes.dim_v);
  const std::int64_t ld = padded_length<float>(steps_of<BFloat16Pair>(dim_v));
  BFloat16Pair* output = copies + C::kRows * ld;
  panel.non_finite[0] = 0;
  fill_pairs<C>(
      call.grad_output, rows, dim_v, counts, copies, panel.grads_by_dim, panel.grads,
      [&](int lane, const BFloat16Pair* grad) {
        const core::ConstOperand& x = call.output;
        copy_pairs(x.data, row_offset<C>(x, rows, lane), x.stride_d, dim_v, ld, output);
        panel.delta[lane] += dot(grad, output, round_up(steps_of<BFloat16Pair>(dim_v), 16));
      },
      [&](int lane) { panel.non_finite[++panel.non_finite[0]] = lane; });
}

FUSED_ATTENTION_END_ISA_NAMESPACE
