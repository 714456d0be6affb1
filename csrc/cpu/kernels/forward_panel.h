// What the forward pass keeps of a panel of query rows: how it is filled, and how it is written
// out.
#pragma once

#include <cstdint>

#include "../../core/online_softmax.h"
#include "pack.h"
#include "panel.h"
#include "panel_io.h"
#include "score.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

template <class C>
struct ForwardPanel {
  using T = typename C::Scalar;
  using E = typename C::Element;
  PanelRows<C>* rows;
  E* queries;  // [D][rows], scaled if not of pairs; few rows (few_rows.h): [rows][D]
  T* output;   // [Dv rounded up][rows]; few rows: [rows][Dv] until the last key
  T* max;
  T* sum;
};

/// Everything a thread needs for one item, carved from its scratch.
template <class C>
struct ForwardScratch {
  using T = typename C::Scalar;
  using E = typename C::Element;
  static constexpr int M = C::kBroadcast;

  ForwardScratch(const core::Sizes& sizes, std::int64_t block_rows, void* base) : arena(base) {
    const std::int64_t longest = core::max64(sizes.dim_qk, sizes.dim_v);
    // Packed or by rows, whichever the form of the tile is.
    keys.by_key = arena.take<E>(tile_size<C>(by_key_size<E>(sizes.dim_qk), sizes.dim_qk));
    values.by_dim = arena.take<E>(tile_size<C>(by_dim_size<E, M>(sizes.dim_v), sizes.dim_v));
    rows = arena.take<T>(core::max64(C::kRows, M) * padded_length<T>(longest));
    scores = arena.take<T>(kTileKeys * C::kRows);
    mask = arena.take<T>(kMaskBuffer<C>);
    alpha = arena.take<T>(C::kRows);
    panels_begin = arena.bytes();
    take_panel<C>(sizes);
    panel_bytes = arena.bytes() - panels_begin;
    bytes = panels_begin + panel_bytes * (block_rows / C::kRows);
  }

  template <class P>
  ForwardPanel<P> take_panel(const core::Sizes& sizes) {
    ForwardPanel<P> panel;
    panel.rows = arena.take<PanelRows<P>>(1);
    panel.queries = arena.take<E>(steps_of<E>(round_up(sizes.dim_qk, M)) * P::kRows);
    panel.output = arena.take<T>(round_up(sizes.dim_v, M) * P::kRows);
    panel.max = arena.take<T>(P::kRows);
    panel.sum = arena.take<T>(P::kRows);
    return panel;
  }

  /// Panel `index`, of C or its tail.
  template <class P>
  ForwardPanel<P> panel(const core::Sizes& sizes, std::int64_t index) {
    arena.rewind(panels_begin + index * panel_bytes);
    return take_panel<P>(sizes);
  }

  Arena arena;
  PackedTile<E> keys;
  PackedTile<E> values;
  NonFinite non_finite;
  T* rows;
  T* scores;
  T* mask;
  T* alpha;
  std::int64_t panels_begin;
  std::int64_t panel_bytes;
  std::int64_t bytes;
};

/// Output rows and LSE of a finished panel.
template <class C>
void write_panel(const core::ForwardProblem& call, const ForwardPanel<C>& panel,
                 typename C::Scalar* buffer) {
  using T = typename C::Scalar;
  const core::Problem& problem = call.problem;
  const core::Sizes& sizes = problem.sizes;
  const PanelRows<C>& rows = *panel.rows;
  store_panel<C>(
      problem.dtype, call.output, rows, static_cast<int>(sizes.dim_v),
      [&](int lane) { return core::output_scale(panel.sum[lane]); }, panel.output, buffer);
  for (int lane = 0; lane < rows.count; ++lane) {
    const std::int64_t head = rows.batch * sizes.heads_q + rows.head[lane];
    static_cast<T*>(call.logsumexp)[head * sizes.seq_q + rows.position[lane]] =
        static_cast<T>(core::logsumexp(panel.max[lane], panel.sum[lane]));
  }
}

/// m, l and the unscaled output of a panel that has seen only a chunk of the keys. `size`: elements
/// of the largest panel.
template <class C>
struct PartialPanel {
  using T = typename C::Scalar;
  PartialPanel(std::int64_t size, std::int64_t panel, std::int64_t chunk, std::int64_t chunks,
               T* base) {
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
