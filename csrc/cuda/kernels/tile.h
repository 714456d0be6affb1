// A tile of 16-bit rows in shared memory, as tensor-core operands read it.
//
// Columns lie in panels of 64: rows of 128 bytes, whose eight 16-byte chunks are permuted by the
// row (chunk ^ row % 8), so that the eight rows which ldmatrix reads at a time lie in different
// banks. The permutation leaves the address of lane and fragment to be combined by one XOR: bits 5
// and 6 of a lane's address change with the fragment's column pair, everything else is added.
#pragma once

#include "../arch/device.h"

namespace fused_attention::cuda {

constexpr int kWarp = 32;
constexpr int kPanelColumns = 64;
constexpr int kRowBytes = 128;
constexpr int kChunkBytes = 16;
constexpr int kChunkElements = 8;
constexpr int kChunksPerRow = 8;

constexpr int panels_of(int columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }

/// Tile number `stage` of those that lie one behind the other from `offset` on.
template <class TileType>
FUSED_ATTENTION_DEVICE TileType shared_tile(int offset, const char* name, int stage = 0) {
  return {shared_region(offset + stage * TileType::kBytes, TileType::kBytes, name)};
}

/// `kColumns` is a multiple of 16.
template <int kRows_, int kColumns_>
struct Tile {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kPanels = panels_of(kColumns);
  static constexpr int kPanelBytes = kRows * kRowBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;

  SharedPtr base;

  /// The tile from a column on, a multiple of 64; the rows stay as far apart as they are.
  FUSED_ATTENTION_DEVICE Tile from_column(int column) const {
    return {base + column / kPanelColumns * kPanelBytes};
  }
  FUSED_ATTENTION_DEVICE SharedPtr chunk(int row, int panel, int chunk) const {
    return base + (panel * kPanelBytes + row * kRowBytes + (chunk ^ (row & 7)) * kChunkBytes);
  }
  /// Two neighbouring elements; `column` is even.
  FUSED_ATTENTION_DEVICE SharedPtr pair(int row, int column) const {
    return chunk(row, column / kPanelColumns, column % kPanelColumns / kChunkElements) +
           column % kChunkElements * 2;
  }
};

/// Where a lane's row of a fragment is, for the fragment at row 0, column 0 of a tile.
///   kByRows: rows of the tile are rows of A (or, with ldmatrix_x4_trans, the sum runs over them):
///            lane l gets row l % 16, chunk l / 16.
///   kByKeys: rows of the tile are columns of B: row l % 8 + l / 16 * 8, chunk l / 8 % 2. Registers
///            0, 1 are then the operand of the first eight rows and 2, 3 of the next: aligned
///            pairs, which the instruction takes as they are.
enum class Pattern { kByRows, kByKeys };

///
/// Opaque: made anew for each product, it holds no registers during the others.
template <class TileType, Pattern pattern>
struct FragmentAddress {
  FUSED_ATTENTION_DEVICE FragmentAddress(TileType tile, int first_row) {
    const int lane = opaque(thread_index()) & (kWarp - 1);
    const int row = pattern == Pattern::kByRows ? lane % 16 : lane % 8 + lane / 16 * 8;
    const int chunk = pattern == Pattern::kByRows ? lane / 16 : lane / 8 % 2;
    lane_base = tile.base + ((first_row + row) * kRowBytes + (chunk ^ (row & 7)) * kChunkBytes);
  }
  /// The fragment at a row and column that are multiples of 16; `row` relative to `first_row`.
  FUSED_ATTENTION_DEVICE SharedPtr at(int row, int column) const {
    return (lane_base ^ column % kPanelColumns * 2) +
           (column / kPanelColumns * TileType::kPanelBytes + row * kRowBytes);
  }
  SharedPtr lane_base;
};

}  // namespace fused_attention::cuda
