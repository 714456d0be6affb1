// Rows of global memory into a tile of shared memory.
#pragma once

#include "block.h"
#include "tile.h"

namespace fused_attention::cuda {

/// The chunks of a tile that fall to the calling thread: one column of chunks in each panel, rows
/// `row` + n * kRowsPerPass. A thread always gets the same ones, so it may look at what it copied
/// itself without a barrier.
template <int kThreads>
struct CopyLane {
  static constexpr int kRowsPerPass = kThreads / kChunksPerRow;
  static_assert(kChunksPerRow == 8);
  static_assert(kRowsPerPass % 8 == 0, "the permutation of a thread's chunks would change");

  /// Opaque: made anew where it is used, it holds no registers between the copies.
  FUSED_ATTENTION_DEVICE CopyLane() {
    const int thread = opaque(thread_index());
    row = thread >> 3;
    column = (thread & 7) * kChunkElements;
    offset = row * kRowBytes + ((thread ^ row) & 7) * kChunkBytes;
  }

  /// Calls f(pass, panel, address) for each own chunk of a tile, row by row.
  template <class TileType, class F>
  FUSED_ATTENTION_DEVICE void for_each_chunk(TileType tile, const F& f) const {
    static_assert(TileType::kRows % kRowsPerPass == 0);
    const SharedPtr base = tile.base + offset;
    FUSED_ATTENTION_UNROLL
    for (int pass = 0; pass < TileType::kRows / kRowsPerPass; ++pass) {
      FUSED_ATTENTION_UNROLL
      for (int panel = 0; panel < TileType::kPanels; ++panel) {
        // The last panel may be narrower.
        if (panel * kPanelColumns + column < TileType::kColumns) {
          f(pass, panel, base + (panel * TileType::kPanelBytes + pass * kRowsPerPass * kRowBytes));
        }
      }
    }
  }

  /// The same as loops, for code that need not be fast.
  template <class TileType, class F>
  FUSED_ATTENTION_DEVICE void for_each_chunk_rolled(TileType tile, const F& f) const {
    FUSED_ATTENTION_NO_UNROLL
    for (int pass = 0; pass < TileType::kRows / kRowsPerPass; ++pass) {
      FUSED_ATTENTION_NO_UNROLL
      for (int panel = 0; panel < TileType::kPanels; ++panel) {
        if (panel * kPanelColumns + column < TileType::kColumns) {
          f(pass, panel,
            tile.base + (offset + panel * TileType::kPanelBytes + pass * kRowsPerPass * kRowBytes));
        }
      }
    }
  }

  int row;
  int column;
  int offset;
};

/// Copies a chunk in the background; zeros if `columns`, the number of columns from here on, is not
/// positive.
template <class E>
FUSED_ATTENTION_DEVICE void copy_chunk(SharedPtr to, GlobalPtr<const E> from, int columns) {
  cp_async_16(to, from, columns > 0 ? kChunkBytes : 0);
}

/// The same where elements are not next to each other, or not aligned, or fewer than a chunk: it is
/// there when the function returns.
template <class E>
FUSED_ATTENTION_DEVICE void gather_chunk(SharedPtr to, GlobalPtr<const E> from,
                                         std::int64_t stride_d, int columns) {
  Words4 words{};
  FUSED_ATTENTION_UNROLL
  for (int n = 0; n < kChunkElements; ++n) {
    if (n < columns) {
      const auto bits = load_global<std::uint16_t>(from + n * stride_d);
      words.value[n / 2] |= static_cast<std::uint32_t>(bits) << (n % 2 * 16);
    }
  }
  store_shared(to, words);
}

/// Reads the rows of one (b, h) of an operand, tile after tile.
template <class E>
struct RowReader {
  GlobalPtr<const E> next;  // the calling thread's first chunk of the next tile
  std::int64_t stride_s;
  std::int64_t stride_d;
  int dim;
  bool in_chunks;

  template <int kThreads, class Operand>
  FUSED_ATTENTION_DEVICE RowReader(const Operand& x, CopyLane<kThreads> lane,
                                   std::int64_t first_element, std::int64_t first_row, int dim,
                                   bool in_chunks)
      : next(GlobalPtr<const E>(static_cast<const E*>(x.data)) +
             (first_element + (first_row + lane.row) * x.stride_s + lane.column * x.stride_d)),
        stride_s(x.stride_s),
        stride_d(x.stride_d),
        dim(dim),
        in_chunks(in_chunks) {}

  /// Copies a tile whose first `count` rows exist; the others become zeros.
  template <bool kAnyStride, int kThreads, class TileType>
  FUSED_ATTENTION_DEVICE void copy_tile(CopyLane<kThreads> lane, TileType tile, int count) {
    constexpr int kStep = CopyLane<kThreads>::kRowsPerPass;
    const auto columns = [&](int pass, int panel) {
      return lane.row + pass * kStep < count ? dim - panel * kPanelColumns - lane.column : 0;
    };
    if (!kAnyStride || in_chunks) {
      GlobalPtr<const E> row = next;
      int current = 0;
      lane.for_each_chunk(tile, [&](int pass, int panel, SharedPtr to) {
        if (pass != current) row = row + kStep * stride_s;
        current = pass;
        copy_chunk(to, row + panel * kPanelColumns, columns(pass, panel));
      });
    } else {
      lane.for_each_chunk_rolled(tile, [&](int pass, int panel, SharedPtr to) {
        gather_chunk(to, next + (pass * kStep * stride_s + panel * kPanelColumns * stride_d),
                     stride_d, columns(pass, panel));
      });
    }
    skip_rows(TileType::kRows);
  }
  FUSED_ATTENTION_DEVICE void skip_rows(int rows) { next = next + rows * stride_s; }
};

/// Copies rows that lie at element offsets `place(row)`, row < count; the others become zeros.
template <bool kAnyStride, class E, int kThreads, class TileType, class Operand, class Place>
FUSED_ATTENTION_DEVICE void copy_rows(CopyLane<kThreads> lane, TileType tile, const Operand& x,
                                      int count, int dim, bool in_chunks, const Place& place) {
  const GlobalPtr<const E> base(static_cast<const E*>(x.data));
  const auto row_of = [&](int pass) { return lane.row + pass * CopyLane<kThreads>::kRowsPerPass; };
  const auto start = [&](int row) {
    return base + ((row < count ? place(row) : 0) + lane.column * x.stride_d);
  };
  const auto columns = [&](int row, int panel) {
    return row < count ? dim - panel * kPanelColumns - lane.column : 0;
  };
  if (!kAnyStride || in_chunks) {
    GlobalPtr<const E> from;
    int current = -1;
    lane.for_each_chunk(tile, [&](int pass, int panel, SharedPtr to) {
      if (pass != current) from = start(row_of(pass));
      current = pass;
      copy_chunk(to, from + panel * kPanelColumns, columns(row_of(pass), panel));
    });
  } else {
    lane.for_each_chunk_rolled(tile, [&](int pass, int panel, SharedPtr to) {
      const int row = row_of(pass);
      gather_chunk(to, start(row) + panel * kPanelColumns * x.stride_d, x.stride_d,
                   columns(row, panel));
    });
  }
}

/// The rows of a block, which lie where its table says.
template <bool kAnyStride, class E, int kThreads, class TileType, class Table, class Operand>
FUSED_ATTENTION_DEVICE void copy_block_rows(CopyLane<kThreads> lane, TileType tile, Table table,
                                            const BlockRows& rows, const Operand& x, int dim,
                                            bool in_chunks) {
  copy_rows<kAnyStride, E>(lane, tile, x, rows.count, dim, in_chunks,
                           [&](int row) { return row_offset(x, rows, table.place(row)); });
}

}  // namespace fused_attention::cuda
