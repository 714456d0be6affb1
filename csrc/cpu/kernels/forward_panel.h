// What the forward pass keeps of a panel of query rows: how it is filled, and how it is written
// out.
#pragma once

#include <cstdint>

#include "../../core/online_softmax.h"
#include "pack.h"
#include "panel.h"
#include "score.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

template <class C>
struct ForwardPanel {
  using T = typename C::Scalar;
  PanelRows<C>* rows;
  T* queries;  // [D][rows], scaled
  T* output;   // [Dv rounded up][rows]
  T* max;
  T* sum;
};

/// Everything a thread needs for one item, carved from its scratch.
template <class C>
struct ForwardScratch {
  using T = typename C::Scalar;
  static constexpr int M = C::kBroadcast;

  ForwardScratch(const core::Sizes& sizes, std::int64_t block_rows, void* base) : arena(base) {
    const std::int64_t longest = core::max64(sizes.dim_qk, sizes.dim_v);
    keys.by_key = arena.take<T>(tile_size(sizes.dim_qk));
    values.by_dim = arena.take<T>(tile_size(sizes.dim_v));
    rows = arena.take<T>(core::max64(C::kRows, M) * padded_length<T>(longest));
    scores = arena.take<T>(kTileKeys * C::kRows);
    mask = arena.take<T>(kMaskBuffer<C>);
    alpha = arena.take<T>(C::kRows);
    panels_begin = arena.bytes();
    take_panel(sizes);
    panel_bytes = arena.bytes() - panels_begin;
    bytes = panels_begin + panel_bytes * (block_rows / C::kRows);
  }

  static std::int64_t tile_size(std::int64_t dim) {
    return C::kPacks ? packed_size<T, M>(dim) : row_tile_size<T>(dim);
  }

  ForwardPanel<C> take_panel(const core::Sizes& sizes) {
    ForwardPanel<C> panel;
    panel.rows = arena.take<PanelRows<C>>(1);
    panel.queries = arena.take<T>(sizes.dim_qk * C::kRows);
    panel.output = arena.take<T>(round_up(sizes.dim_v, M) * C::kRows);
    panel.max = arena.take<T>(C::kRows);
    panel.sum = arena.take<T>(C::kRows);
    return panel;
  }

  ForwardPanel<C> panel(const core::Sizes& sizes, std::int64_t index) {
    arena.rewind(panels_begin + index * panel_bytes);
    return take_panel(sizes);
  }

  Arena arena;
  PackedTile<T> keys;
  PackedTile<T> values;
  NonFinite non_finite;
  T* rows;
  T* scores;
  T* mask;
  T* alpha;
  std::int64_t panels_begin;
  std::int64_t panel_bytes;
  std::int64_t bytes;
};

/// Query rows of a panel, transposed: to[d][lane] = factor * x[row of lane][d], 0 in empty lanes.
template <class C>
void load_panel(core::DType dtype, const core::ConstOperand& x, const PanelRows<C>& rows, int dim,
                typename C::Scalar factor, typename C::Scalar* buffer, typename C::Scalar* to) {
  using T = typename C::Scalar;
  const std::int64_t ld = padded_length<T>(dim);
  for (int lane = 0; lane < C::kRows; ++lane) {
    T* row = buffer + lane * ld;
    if (lane < rows.count) {
      load_row(
          dtype, x.data,
          rows.batch * x.stride_b + rows.head[lane] * x.stride_h + rows.position[lane] * x.stride_s,
          x.stride_d, dim, row);
      for (int d = 0; d < dim; ++d) row[d] *= factor;
    } else {
      for (int d = 0; d < dim; ++d) row[d] = 0;
    }
  }
  transpose(C::kRows, dim, buffer, ld, to, C::kRows);
}

/// Output rows and LSE of a finished panel.
template <class C>
void write_panel(const core::ForwardProblem& call, const PanelRows<C>& rows,
                 const typename C::Scalar* max, const typename C::Scalar* sum,
                 const typename C::Scalar* output, typename C::Scalar* buffer) {
  using T = typename C::Scalar;
  const core::Problem& problem = call.problem;
  const int dim = static_cast<int>(problem.sizes.dim_v);
  const std::int64_t ld = padded_length<T>(dim);
  transpose(dim, C::kRows, output, C::kRows, buffer, ld);
  for (int lane = 0; lane < rows.count; ++lane) {
    const std::int64_t b = rows.batch;
    const std::int64_t h = rows.head[lane];
    const std::int64_t i = rows.position[lane];
    T* row = buffer + lane * ld;
    const T factor = static_cast<T>(core::output_scale(sum[lane]));
    for (int d = 0; d < dim; ++d) row[d] *= factor;
    const core::Operand& out = call.output;
    store_row(problem.dtype, out.data, b * out.stride_b + h * out.stride_h + i * out.stride_s,
              out.stride_d, dim, row);
    static_cast<T*>(call.logsumexp)[(b * problem.sizes.heads_q + h) * problem.sizes.seq_q + i] =
        static_cast<T>(core::logsumexp(max[lane], sum[lane]));
  }
}

/// m, l and the unscaled output of a panel that has seen only a chunk of the keys.
template <class C>
struct PartialPanel {
  using T = typename C::Scalar;
  PartialPanel(const core::Sizes& sizes, std::int64_t panel, std::int64_t chunk,
               std::int64_t chunks, T* base) {
    const std::int64_t size = elements(sizes);
    max = base + (panel * chunks + chunk) * size;
    sum = max + C::kRows;
    output = sum + C::kRows;
  }
  static std::int64_t elements(const core::Sizes& sizes) { return (2 + sizes.dim_v) * C::kRows; }
  T* max;
  T* sum;
  T* output;
};

template <class C>
void store_partial(const core::Sizes& sizes, const ForwardPanel<C>& panel, PartialPanel<C> to) {
  using T = typename C::Scalar;
  __builtin_memcpy(to.max, panel.max, sizeof(T) * C::kRows);
  __builtin_memcpy(to.sum, panel.sum, sizeof(T) * C::kRows);
  __builtin_memcpy(to.output, panel.output,
                   sizeof(T) * static_cast<std::size_t>(sizes.dim_v * C::kRows));
}

FUSED_ATTENTION_END_ISA_NAMESPACE
