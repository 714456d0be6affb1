// Which rows a block computes, and which keys they see.
#pragma once

#include "../../core/mask.h"
#include "../../core/schedule.h"
#include "../arch/device.h"
#include "tile.h"

namespace fused_attention::cuda {

/// A block's rows: a stretch of the list of all rows of a (b, key-value head) pair.
struct BlockRows {
  std::int64_t batch;
  std::int64_t first_head;      // query head 0 of the group
  std::int64_t first_position;  // of the block's first row
  std::int32_t count;
  std::int32_t last_position;  // of its last row, relative to the first
  std::int32_t first_value;    // column of V that the block begins with
};

/// Of one row: position relative to the block's first, and query head in the group.
struct alignas(8) RowPlace {
  std::int32_t position;
  std::int32_t head;
};

FUSED_ATTENTION_DEVICE std::int64_t linear_block_index() {
  return block_index_y() * grid_size_x() + block_index_x();
}

/// Which rows or keys a block computes, which columns of their sums where those are cut into
/// slices, and which of the keys where those are cut into chunks.
struct BlockIndex {
  std::int64_t item;
  int slice;
  int chunk;
};

FUSED_ATTENTION_DEVICE BlockIndex block_index(int slices, int chunks = 1) {
  const std::int64_t linear = linear_block_index();
  const std::int64_t part = slices == 1 ? linear : linear / slices;
  const std::int64_t item = chunks == 1 ? part : part / chunks;
  return {item, static_cast<int>(linear - part * slices), static_cast<int>(part - item * chunks)};
}

/// The keys that a block's rows see through the band. Lengths are below 2^29 (the host checks), so
/// they are ints.
struct alignas(16) BlockKeys {
  std::int32_t begin;  // of the first tile that some row sees
  std::int32_t end;    // some row sees keys before
  std::int32_t full_begin;
  std::int32_t full_end;  // every row sees full_begin <= j < full_end

  template <int kKeys>
  FUSED_ATTENTION_DEVICE bool is_full(int tile) const {
    return full_begin <= tile && tile + kKeys <= full_end;
  }
};

/// The first and last key that the first row sees through the band; those of another row are
/// shifted by its relative position.
struct alignas(8) BlockBand {
  std::int32_t low;
  std::int32_t high;

  FUSED_ATTENTION_DEVICE bool sees(int position, int key) const {
    return key >= low + position && key <= high + position;
  }
};

FUSED_ATTENTION_DEVICE int bounded_key(std::int64_t j) {
  constexpr std::int64_t kFar = std::int64_t{1} << 30;
  return static_cast<int>(core::clamp64(j, -kFar, kFar));
}

/// Tiles begin at multiples of `tile_keys`.
FUSED_ATTENTION_DEVICE BlockKeys block_keys(const core::Problem& problem, const BlockRows& rows,
                                            int tile_keys) {
  const std::int64_t first = rows.first_position;
  const std::int64_t last = first + rows.last_position;
  const core::KeyInterval any =
      core::keys_of_any_row(problem.band, first, last, problem.sizes.seq_k);
  const core::KeyInterval every =
      core::keys_of_every_row(problem.band, first, last, problem.sizes.seq_k);
  if (any.begin >= any.end) return {0, 0, 0, 0};
  return {bounded_key(any.begin) / tile_keys * tile_keys, bounded_key(any.end),
          bounded_key(every.begin), bounded_key(every.end)};
}

/// The tiles of chunk `index` of `count` nearly equal ones.
struct KeyChunk {
  int index = 0;
  int count = 1;
};

FUSED_ATTENTION_DEVICE BlockKeys keys_of_chunk(const BlockKeys& keys, KeyChunk chunk,
                                               int tile_keys) {
  if (chunk.count == 1) return keys;
  const std::int64_t tiles = core::ceil_div(keys.end - keys.begin, tile_keys);
  const auto first_of = [&](int index) {
    return keys.begin + static_cast<int>(tiles * index / chunk.count) * tile_keys;
  };
  const int end = first_of(chunk.index + 1);
  return {first_of(chunk.index), end < keys.end ? end : keys.end, keys.full_begin, keys.full_end};
}

FUSED_ATTENTION_DEVICE BlockBand block_band(const core::Problem& problem, const BlockRows& rows) {
  return {bounded_key(rows.first_position + problem.band.lower),
          bounded_key(rows.first_position + problem.band.upper)};
}

/// What is known about a block and its rows, in shared memory: it is needed at the beginning, at
/// the end and in tiles with hidden keys, and should not take registers in between.
template <int kRows, int kKeys, int kThreads>
struct BlockTable {
  static constexpr int kKeysOffset = 48;  // after the BlockRows
  static constexpr int kBandOffset = kKeysOffset + static_cast<int>(sizeof(BlockKeys));
  static constexpr int kPlaceOffset = kBandOffset + static_cast<int>(sizeof(BlockBand));
  static constexpr int kFlagOffset = kPlaceOffset + kRows * static_cast<int>(sizeof(RowPlace));
  static constexpr int kBytes = kFlagOffset + kThreads * 4;

  SharedPtr base;

  /// `index`: of the block among all row blocks of all heads. Later rows see more keys under a
  /// causal mask; they go first, so that the last blocks to finish are short. Ends with a barrier.
  FUSED_ATTENTION_DEVICE BlockRows fill(const core::Problem& problem,
                                        const core::RowSchedule& schedule, std::int64_t index,
                                        int first_value, KeyChunk chunk = {}) const {
    const core::Sizes& sizes = problem.sizes;
    const std::int64_t pair = index / schedule.blocks;
    const std::int64_t from_last = index - pair * schedule.blocks;
    const core::RowBlock block =
        core::row_block(schedule, sizes, pair, schedule.blocks - 1 - from_last);
    const std::int64_t group = core::group_size(sizes);
    const std::int64_t first_position = block.first / group;
    const std::int64_t first_in_group = block.first - first_position * group;
    const auto place = [&](std::int64_t row) {
      const std::int64_t position = (first_in_group + row) / group;
      return RowPlace{static_cast<std::int32_t>(position),
                      static_cast<std::int32_t>(first_in_group + row - position * group)};
    };
    const BlockRows rows{block.batch,
                         block.head_kv * group,
                         first_position,
                         static_cast<std::int32_t>(block.count),
                         place(block.count - 1).position,
                         first_value};
    // Rows that do not exist get the place of the last one.
    FUSED_ATTENTION_NO_UNROLL
    for (int row = thread_index(); row < kRows; row += kThreads) {
      store_shared(at(row), place(row < rows.count ? row : rows.count - 1));
    }
    if (thread_index() == 0) {
      store_shared(base, Pack<std::int64_t, 2>{rows.batch, rows.first_head});
      store_shared(base + 16, rows.first_position);
      store_shared(base + 24, Pack<std::int32_t, 2>{rows.count, rows.last_position});
      store_shared(base + 32, rows.first_value);
    }
    if (thread_index() == kWarp) {
      const BlockKeys keys = block_keys(problem, rows, kKeys);
      store_shared(base + kKeysOffset, keys_of_chunk(keys, chunk, kKeys));
      store_shared(base + kBandOffset, block_band(problem, rows));
    }
    store_shared(flag(), 0);
    block_sync();
    return rows;
  }

  FUSED_ATTENTION_DEVICE BlockRows rows() const {
    const auto head = load_shared<Pack<std::int64_t, 2>>(base);
    const auto position = load_shared<std::int64_t>(base + 16);
    const auto count = load_shared<Pack<std::int32_t, 2>>(base + 24);
    return {head.value[0],  head.value[1],  position,
            count.value[0], count.value[1], load_shared<std::int32_t>(base + 32)};
  }
  FUSED_ATTENTION_DEVICE BlockKeys keys() const {
    return load_shared<BlockKeys>(base + kKeysOffset);
  }
  FUSED_ATTENTION_DEVICE BlockBand band() const {
    return load_shared<BlockBand>(base + kBandOffset);
  }
  FUSED_ATTENTION_DEVICE RowPlace place(int row) const { return load_shared<RowPlace>(at(row)); }
  FUSED_ATTENTION_DEVICE int position(int row) const { return load_shared<std::int32_t>(at(row)); }

  /// A flag of the calling thread, which would otherwise hold a register all the time.
  FUSED_ATTENTION_DEVICE void raise_flag() const { store_shared(flag(), 1); }
  FUSED_ATTENTION_DEVICE bool has_flag() const { return load_shared<int>(flag()) != 0; }

 private:
  FUSED_ATTENTION_DEVICE SharedPtr at(int row) const {
    return base + (kPlaceOffset + row * static_cast<int>(sizeof(RowPlace)));
  }
  FUSED_ATTENTION_DEVICE SharedPtr flag() const {
    return base + (kFlagOffset + thread_index() * 4);
  }
};

/// Element offset of a row of a (B, H, S, D) operand.
template <class Operand>
FUSED_ATTENTION_DEVICE std::int64_t row_offset(const Operand& x, const BlockRows& rows,
                                               RowPlace place) {
  return rows.batch * x.stride_b + (rows.first_head + place.head) * x.stride_h +
         (rows.first_position + place.position) * x.stride_s;
}

/// Where a row of a result goes, if it exists: an element offset.
struct RowTarget {
  bool exists;
  std::int64_t offset;
};

/// The rows of a block, which lie where its table says.
template <class Table>
struct BlockTarget {
  Table table;
  const core::Operand& to;

  FUSED_ATTENTION_DEVICE RowTarget operator()(int row) const {
    const BlockRows rows = table.rows();
    return {row < rows.count, row_offset(to, rows, table.place(row))};
  }
};

/// Index of a row in a contiguous (B, Hq, Sq) list.
FUSED_ATTENTION_DEVICE std::int64_t row_index(const core::Sizes& sizes, const BlockRows& rows,
                                              RowPlace place) {
  return (rows.batch * sizes.heads_q + rows.first_head + place.head) * sizes.seq_q +
         rows.first_position + place.position;
}

}  // namespace fused_attention::cuda
