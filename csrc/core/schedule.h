// How a problem is cut into work items.
//
// The query rows of all heads of a key-value head are one list, position-major: row r is position
// r / G of the group's head r % G, G = Hq / Hkv. Neighbouring rows see nearly the same keys, and
// K/V tiles serve the whole group. How rows are cut changes no bit of any result, so it may depend
// on the number of threads; how keys are cut does, so it depends on shapes only.
#pragma once

#include <cstdint>

#include "host_device.h"
#include "mask.h"
#include "problem.h"

namespace fused_attention::core {

/// Limits of one kernel variant, in rows and elements of the computing type.
struct TileLimits {
  std::int64_t panel_rows = 0;    // rows in the vector lanes of one panel
  std::int64_t panels = 0;        // most panels of an item
  std::int64_t least_panels = 1;  // fewest panels of an item, if there are rows for more
  std::int64_t enough_items = 1;  // items are made smaller, down to least_panels, to have so many
  std::int64_t panel_floats = 0;  // most elements of scratch that an item's panels may take
};

/// Rows of every (b, kv head) pair, cut into equal blocks of whole panels.
struct RowSchedule {
  std::int64_t rows = 0;        // G * Sq
  std::int64_t block_rows = 0;  // rows of a block; the last one may be shorter
  std::int64_t blocks = 0;      // blocks per (b, kv head)
  std::int64_t heads = 0;       // B * Hkv
};

/// One block of rows: the (b, kv head) it belongs to and its rows first <= r < first + count.
struct RowBlock {
  std::int64_t batch = 0;
  std::int64_t head_kv = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

FUSED_ATTENTION_CORE std::int64_t group_size(const Sizes& sizes) {
  return sizes.heads_kv > 0 ? sizes.heads_q / sizes.heads_kv : 0;
}

/// `floats_per_row`: scratch elements that one row needs.
FUSED_ATTENTION_CORE RowSchedule schedule_rows(const Sizes& sizes, const TileLimits& limits,
                                               std::int64_t floats_per_row) {
  RowSchedule schedule;
  schedule.rows = group_size(sizes) * sizes.seq_q;
  schedule.heads = sizes.batch * sizes.heads_kv;
  const std::int64_t panels = max64(1, ceil_div(schedule.rows, limits.panel_rows));
  const std::int64_t panel_floats = limits.panel_rows * max64(1, floats_per_row);
  std::int64_t most = clamp64(limits.panel_floats / panel_floats, 1, limits.panels);
  if (schedule.heads > 0) {
    const std::int64_t enough_blocks = ceil_div(limits.enough_items, schedule.heads);
    most = min64(most, max64(limits.least_panels, ceil_div(panels, enough_blocks)));
  }
  // Blocks of equal size: 9 panels with room for 8 become 5 + 4.
  const std::int64_t blocks = ceil_div(panels, most);
  schedule.block_rows = ceil_div(panels, blocks) * limits.panel_rows;
  schedule.blocks = ceil_div(schedule.rows, schedule.block_rows);
  return schedule;
}

/// The block `index` of a (b, kv head) pair `head` = b * Hkv + kv head.
FUSED_ATTENTION_CORE RowBlock row_block(const RowSchedule& schedule, const Sizes& sizes,
                                        std::int64_t head, std::int64_t index) {
  RowBlock block;
  block.batch = head / sizes.heads_kv;
  block.head_kv = head % sizes.heads_kv;
  block.first = index * schedule.block_rows;
  block.count = min64(schedule.block_rows, schedule.rows - block.first);
  return block;
}

/// In how many chunks of keys each row block is cut so that few rows still make many items
/// (flash-decoding: Dao et al. 2023). 1 = none; more only when the rows alone make fewer than
/// `enough_items`, and each chunk keeps at least `least_tiles` tiles.
FUSED_ATTENTION_CORE std::int64_t key_chunks(const RowSchedule& schedule, std::int64_t seq_k,
                                             std::int64_t tile_keys, std::int64_t enough_items,
                                             std::int64_t least_tiles) {
  const std::int64_t items = schedule.heads * schedule.blocks;
  if (items == 0 || items >= enough_items) return 1;
  const std::int64_t tiles = ceil_div(seq_k, tile_keys);
  return max64(1, min64(ceil_div(enough_items, items), tiles / least_tiles));
}

}  // namespace fused_attention::core
