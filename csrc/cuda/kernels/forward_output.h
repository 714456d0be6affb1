// The end of a forward block: output and LSE of its rows.
#pragma once

#include "../../core/online_softmax.h"
#include "copy.h"
#include "params.h"
#include "partials.h"
#include "softmax.h"

namespace fused_attention::cuda {

/// Writes 8 columns from `row` on, of which `columns` exist (and none if <= 0).
template <bool kAnyStride, class E>
FUSED_ATTENTION_DEVICE void store_chunk(GlobalPtr<E> row, std::int64_t stride_d, int columns,
                                        bool in_chunks, const Words4& words) {
  if constexpr (kAnyStride) {
    if (!in_chunks) {
      FUSED_ATTENTION_UNROLL
      for (int n = 0; n < kChunkElements; ++n) {
        if (n < columns) {
          store_global(row + n * stride_d,
                       static_cast<std::uint16_t>(words.value[n / 2] >> (n % 2 * 16)));
        }
      }
      return;
    }
  }
  if (columns > 0) store_global(row, words);
}

/// Writes kM * 16 rows of a warp's accumulators, times a factor of the row, to the columns of an
/// operand from `first_column` on. They go through `tile`, of which the warp uses its own rows from
/// `first_row` on only: neighbouring lanes then write neighbouring chunks. `target(row)`: a
/// RowTarget.
template <bool kAnyStride, class E, int kM, int kN, class TileType, class Target>
FUSED_ATTENTION_DEVICE void write_rows(const Accumulator<kM, kN>& sums,
                                       const float (&factor)[kM][2], TileType tile, int first_row,
                                       const core::Operand& to, int first_column, int dim,
                                       bool in_chunks, const Target& target) {
  warp_sync();
  FUSED_ATTENTION_UNROLL
  for (int m = 0; m < kM; ++m) {
    FUSED_ATTENTION_UNROLL
    for (int half = 0; half < 2; ++half) {
      FUSED_ATTENTION_UNROLL
      for (int n = 0; n < kN; ++n) {
        const float* pair = sums.value[m][n] + half * 2;
        store_shared(tile.pair(first_row + m * 16 + fragment_row(half), n * 8 + fragment_column()),
                     pack2<E>(pair[0] * factor[m][half], pair[1] * factor[m][half]));
      }
    }
  }
  warp_sync();
  const int lane = thread_index() % kWarp;
  const int chunk = lane % kChunksPerRow;
  const GlobalPtr<E> base(static_cast<E*>(to.data));
  FUSED_ATTENTION_NO_UNROLL
  for (int pass = 0; pass < kM * 16; pass += kWarp / kChunksPerRow) {
    const int row = first_row + pass + lane / kChunksPerRow;
    const RowTarget at = target(row);
    if (at.exists) {
      const GlobalPtr<E> columns = base + (at.offset + first_column * to.stride_d);
      FUSED_ATTENTION_UNROLL
      for (int panel = 0; panel < TileType::kPanels; ++panel) {
        const int column = panel * kPanelColumns + chunk * kChunkElements;
        if (column < TileType::kColumns) {
          store_chunk<kAnyStride>(columns + column * to.stride_d, to.stride_d, dim - column,
                                  in_chunks, load_shared<Words4>(tile.chunk(row, panel, chunk)));
        }
      }
    }
  }
}

template <class C, class Rows, class Exponent>
FUSED_ATTENTION_DEVICE void write_forward(const ForwardParams& params, const Rows& warp_rows,
                                          const Exponent& exponent,
                                          const RunningSoftmax<C::kM>& softmax,
                                          const Accumulator<C::kM, C::kOutputN>& output) {
  const core::Sizes& sizes = params.call.problem.sizes;
  const BlockRows rows = warp_rows.table.rows();
  float factor[C::kM][2];
  FUSED_ATTENTION_UNROLL
  for (int m = 0; m < C::kM; ++m) {
    FUSED_ATTENTION_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_row(softmax.sum[m][half]);
      factor[m][half] = core::output_scale(sum);
      const int row = warp_rows.row(m, half);
      if (rows.first_value == 0 && fragment_column() == 0 && row < rows.count) {
        const RowPlace place = warp_rows.table.place(row);
        const GlobalPtr<float> lse(static_cast<float*>(params.call.logsumexp));
        store_global(lse + row_index(sizes, rows, place),
                     exponent.logsumexp(softmax.max[m][half], sum));
      }
    }
  }
  const auto tile = shared_tile<typename C::OutputTile>(0, "output");
  const core::Operand& to = params.call.output;
  write_rows<C::kGeneral, typename C::Element>(
      output, factor, tile, warp_rows.first_row, to, rows.first_value,
      static_cast<int>(sizes.dim_v) - rows.first_value, params.output_in_chunks,
      BlockTarget<typename C::Table>{warp_rows.table, to});
}

/// The same for a chunk of the keys, of complete scores.
template <class C, class Rows>
FUSED_ATTENTION_DEVICE void write_partials(const ForwardParams& params, const Rows& warp_rows,
                                           const RunningSoftmax<C::kM>& softmax,
                                           const Accumulator<C::kM, C::kOutputN>& output) {
  const core::Sizes& sizes = params.call.problem.sizes;
  const int chunk = block_index(params.value_slices, params.chunks).chunk;
  const BlockRows rows = warp_rows.table.rows();
  const int column = rows.first_value + fragment_column();
  FUSED_ATTENTION_UNROLL
  for (int m = 0; m < C::kM; ++m) {
    FUSED_ATTENTION_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_row(softmax.sum[m][half]);
      const int row = warp_rows.row(m, half);
      if (row >= rows.count) continue;
      const auto to =
          partial_of<float>(params, row_index(sizes, rows, warp_rows.table.place(row)), chunk);
      if (column == 0) to.store_softmax(softmax.max[m][half], sum);
      FUSED_ATTENTION_UNROLL
      for (int n = 0; n < C::kOutputN; ++n) {
        FUSED_ATTENTION_UNROLL
        for (int i = 0; i < 2; ++i) {
          if (column + n * 8 + i < sizes.dim_v) {
            store_global(to.sums + (column + n * 8 + i), output.value[m][n][half * 2 + i]);
          }
        }
      }
    }
  }
}

}  // namespace fused_attention::cuda
