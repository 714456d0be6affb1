// How a call is cut into items: core/schedule.h with this ISA's tuning numbers.
#pragma once

#include <cstdint>

#include "../../core/schedule.h"
#include "panel.h"
#include "tuning.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// The limits of items whose panels take at most `panel_floats` elements of scratch.
template <class C>
constexpr core::TileLimits tile_limits(std::int64_t panel_floats, std::int64_t enough_items) {
  return {.panel_rows = C::kRows,
          .panels = kMostPanels,
          .least_panels = kLeastPanels,
          .enough_items = enough_items,
          .panel_floats = panel_floats};
}

/// How rows and keys are cut. Keys are, where even the smallest blocks of rows make few items, and
/// whatever the number of threads; rows, as finely as `threads` threads need.
template <class C>
struct Cut {
  Cut(const core::Sizes& sizes, std::int64_t panel_floats, std::int64_t floats_per_row,
      std::int64_t threads) {
    const auto finest =
        core::schedule_rows(sizes, tile_limits<C>(panel_floats, kEnoughItems), floats_per_row);
    tiles = core::ceil_div(sizes.seq_k, kTileKeys);
    chunks = core::key_chunks(finest, sizes.seq_k, kTileKeys, kEnoughItems, kLeastTilesPerChunk);
    chunk_tiles = core::ceil_div(tiles, chunks);
    const std::int64_t wanted =
        threads == 1 ? 1 : core::ceil_div(kItemsPerThread * threads, chunks);
    rows = core::schedule_rows(sizes, tile_limits<C>(panel_floats, wanted), floats_per_row);
  }
  core::RowSchedule rows;
  std::int64_t tiles;        // of keys
  std::int64_t chunks;       // of keys per row block
  std::int64_t chunk_tiles;  // key tiles of a chunk
};

FUSED_ATTENTION_END_ISA_NAMESPACE
