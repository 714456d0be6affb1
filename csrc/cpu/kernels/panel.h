// A panel: a few query rows, one per vector lane, and which keys of a tile each of them sees.
#pragma once

#include <cstdint>

#include "../../core/mask.h"
#include "../../core/problem.h"
#include "../../core/schedule.h"
#include "convert.h"
#include "pack.h"
#include "simd.h"
#include "tuning.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// What a kernel is compiled for. `Element` is what the operands of its products are made of
/// (gemm.h). `Score` and `Dropout` are the policies of the tile loop: a term of the score is a type
/// with `apply(scores, span)`, and so on; see score.h.
template <class Element_, int kVectors_, int kBroadcast_, class Score_>
struct Config {
  using Element = Element_;
  using Scalar = ScalarOf<Element>;
  using Score = Score_;
  static constexpr bool kPaired = ElementTraits<Element>::kDepth == 2;
  static constexpr int kVectors = kVectors_;
  static constexpr int kBroadcast = kBroadcast_;
  static constexpr int kRows = kVectors * kLanes<Scalar>;
  /// The panels that end a block, one vector less (or as many, if there is only one).
  using Tail = Config<Element, kVectors == 1 ? 1 : kVectors - 1, kBroadcast, Score>;
};

/// Calls f(config, panel, first row) for the panels of a block of `count` rows, in order: panels of
/// C, then up to kVectors - 1 tails, so that no vector stays empty. Never more than ceil(count /
/// C::kRows) panels.
template <class C, class F>
FUSED_ATTENTION_INLINE void for_each_panel(std::int64_t count, const F& f) {
  constexpr int W = C::kVectors;
  std::int64_t wide = core::ceil_div(count, kLanes<typename C::Scalar>);  // in vectors
  std::int64_t tails = 0;
  if constexpr (W > 1) {
    tails = core::min64((W - wide % W) % W, core::ceil_div(wide, W - 1));
    wide -= tails * (W - 1);
  }
  std::int64_t panel = 0;
  std::int64_t first = 0;
  for (; wide > 0; wide -= W, ++panel, first += C::kRows) f(C{}, panel, first);
  if constexpr (W > 1) {
    using Tail = typename C::Tail;
    for (; tails > 0; --tails, ++panel, first += Tail::kRows) f(Tail{}, panel, first);
  }
}

/// Where each lane's row is: position i, query head h. Lanes past `count` hold no row.
template <class C>
struct PanelRows {
  std::int64_t batch = 0;
  int count = 0;
  std::int64_t position[C::kRows];
  std::int64_t head[C::kRows];
};

template <class C>
FUSED_ATTENTION_INLINE void place_rows(const core::Sizes& sizes, const core::RowBlock& block,
                                       std::int64_t offset, PanelRows<C>& rows) {
  const std::int64_t group = core::group_size(sizes);
  rows.batch = block.batch;
  rows.count = static_cast<int>(core::min64(C::kRows, block.count - offset));
  std::int64_t position = (block.first + offset) / group;
  std::int64_t in_group = (block.first + offset) % group;
  for (int lane = 0; lane < C::kRows; ++lane) {
    rows.position[lane] = position;
    rows.head[lane] = block.head_kv * group + in_group;
    if (++in_group == group) {
      in_group = 0;
      ++position;
    }
  }
}

/// Keys of a tile, relative to its first: some row sees begin <= j < end, every row sees
/// full_begin <= j < full_end (through the band).
struct TileSpan {
  int begin = 0;
  int end = 0;
  int full_begin = 0;
  int full_end = 0;
};

template <class C>
FUSED_ATTENTION_INLINE TileSpan span_of(const core::Problem& problem, const PanelRows<C>& rows,
                                        std::int64_t tile_first, int tile_keys) {
  const std::int64_t first = rows.position[0];
  const std::int64_t last = rows.position[rows.count - 1];
  const std::int64_t seq_k = problem.sizes.seq_k;
  const auto any = core::keys_of_any_row(problem.band, first, last, seq_k);
  const auto every = core::keys_of_every_row(problem.band, first, last, seq_k);
  const auto relative = [&](std::int64_t j) {
    return static_cast<int>(core::clamp64(j - tile_first, 0, tile_keys));
  };
  TileSpan span{relative(any.begin), relative(any.end), relative(every.begin), relative(every.end)};
  if (span.full_end < span.full_begin) {
    span.full_begin = span.full_end = span.begin;
  }
  // Whole groups of keys: those before `begin` are hidden by the band like any other.
  span.begin -= span.begin % C::kBroadcast;
  return span;
}

/// Hides what the band hides: scores of keys that not every row sees.
template <class C>
void hide_by_band(const core::Band& band, const PanelRows<C>& rows, std::int64_t tile_first,
                  TileSpan span, typename C::Scalar* scores) {
  using T = typename C::Scalar;
  constexpr int L = kLanes<T>;
  alignas(64) T low[C::kRows];
  alignas(64) T high[C::kRows];
  for (int lane = 0; lane < C::kRows; ++lane) {
    const std::int64_t i = rows.position[lane];
    const bool row = lane < rows.count;
    low[lane] = static_cast<T>(core::clamp64(i + band.lower - tile_first, -1, kTileKeys));
    high[lane] =
        row ? static_cast<T>(core::clamp64(i + band.upper - tile_first, -1, kTileKeys)) : T(-1);
  }
  const auto hide = [&](int from, int to) {
    for (int j = from; j < to; ++j) {
      const Vec<T> key = splat(static_cast<T>(j));
      for (int v = 0; v < C::kVectors; ++v) {
        T* at = scores + j * C::kRows + v * L;
        const auto seen = (key >= load(low + v * L)) & (key <= load(high + v * L));
        store(at, seen ? load(at) : splat(-kInfinity<T>));
      }
    }
  };
  hide(span.begin, span.full_begin);
  hide(span.full_end > span.begin ? span.full_end : span.begin, span.end);
}

FUSED_ATTENTION_END_ISA_NAMESPACE
