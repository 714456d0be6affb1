// Tiles and products of the kernels without tensor cores. A block has rows of its own, query rows
// or keys, and meets the others tile by tile. It is 16 x 16 threads: the threads of a row of lanes
// share own rows, and each has every 16th of the tile's.
#pragma once

#include "../arch/device.h"
#include "../tile_config.h"
#include "block.h"
#include "tile.h"

namespace fused_attention::cuda {

FUSED_ATTENTION_DEVICE int exact_lane() { return thread_index() % ExactTile::kLanes; }

/// Row `r` of the calling thread's kR rows of the block.
template <int kR>
FUSED_ATTENTION_DEVICE int exact_row(int r) {
  return thread_index() / ExactTile::kLanes * kR + r;
}

/// Elements of a 16-byte vector.
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

/// Row `n` of the calling thread's rows of a tile.
FUSED_ATTENTION_DEVICE int exact_other(int n) { return exact_lane() + n * ExactTile::kLanes; }

/// Column `c` of the calling thread's columns of a sum: vectors of neighbours.
template <class T>
FUSED_ATTENTION_DEVICE int exact_column(int c) {
  return (c / kVector<T> * ExactTile::kLanes + exact_lane()) * kVector<T> + c % kVector<T>;
}

/// Rows of kColumns elements, padded by a vector: eight lanes that read vectors of eight successive
/// rows then reach different banks.
template <class T, int kRows_, int kColumns_>
struct ExactRows {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kRowBytes = kColumns * static_cast<int>(sizeof(T)) + 16;
  static constexpr int kBytes = kRows * kRowBytes;
  using Element = T;

  SharedPtr base;

  FUSED_ATTENTION_DEVICE SharedPtr at(int row, int column) const {
    return base + (row * kRowBytes + column * static_cast<int>(sizeof(T)));
  }
};

/// The first `count` columns of a row that exist.
template <class T>
struct ExactSource {
  GlobalPtr<const T> from;
  std::int64_t stride_d;
  int count;
};

/// The columns of an operand from `column` on, of `dim`, in the row at an element offset.
template <class T>
FUSED_ATTENTION_DEVICE ExactSource<T> exact_source(const core::ConstOperand& x, bool exists,
                                                   std::int64_t offset, int column, int dim) {
  const GlobalPtr<const T> base(static_cast<const T*>(x.data));
  return {base + (offset + column * x.stride_d), x.stride_d, exists ? dim - column : 0};
}

/// Fills a tile from source(row), with zeros where there is nothing. Returns whether the calling
/// thread loaded Inf or NaN.
template <class TileType, class Source>
FUSED_ATTENTION_DEVICE bool load_exact_rows(TileType tile, const Source& source) {
  using T = typename TileType::Element;
  constexpr int kThreads = ExactTile::kThreads;
  constexpr int kStep = kThreads < TileType::kColumns ? kThreads : TileType::kColumns;
  static_assert(TileType::kColumns % kStep == 0 && kThreads % kStep == 0);
  bool non_finite = false;
  FUSED_ATTENTION_NO_UNROLL
  for (int row = thread_index() / kStep; row < TileType::kRows; row += kThreads / kStep) {
    const ExactSource<T> x = source(row);
    FUSED_ATTENTION_UNROLL
    for (int column = 0; column < TileType::kColumns; column += kStep) {
      const int own = column + thread_index() % kStep;
      const T value = own < x.count ? load_global<T>(x.from + own * x.stride_d) : T(0);
      non_finite |= !(value - value == 0);
      store_shared(tile.at(row, own), value);
    }
  }
  return non_finite;
}

/// scores += A B^T over the columns of the tiles, A of the block's rows.
template <class Own, class Other, class T, int kR, int kN>
FUSED_ATTENTION_DEVICE void multiply_exact_rows(Own own, Other other, T (&scores)[kR][kN]) {
  constexpr int kV = kVector<T>;
  FUSED_ATTENTION_NO_UNROLL
  for (int column = 0; column < Own::kColumns; column += kV) {
    Pack<T, kV> a[kR];
    FUSED_ATTENTION_UNROLL
    for (int r = 0; r < kR; ++r) {
      a[r] = load_shared<Pack<T, kV>>(own.at(exact_row<kR>(r), column));
    }
    FUSED_ATTENTION_UNROLL
    for (int n = 0; n < kN; ++n) {
      const auto b = load_shared<Pack<T, kV>>(other.at(exact_other(n), column));
      FUSED_ATTENTION_UNROLL
      for (int r = 0; r < kR; ++r) {
        FUSED_ATTENTION_UNROLL
        for (int v = 0; v < kV; ++v) {
          scores[r][n] = fused_multiply_add(a[r].value[v], b.value[v], scores[r][n]);
        }
      }
    }
  }
}

/// scores = A B^T over all `dim` columns, a chunk at a time. `own_row`, `other_row`: (row, column)
/// -> ExactSource. Begins with a barrier.
template <class Tiles, class OwnRow, class OtherRow, class T>
FUSED_ATTENTION_DEVICE void multiply_exact_operands(const Tiles& tiles, int dim,
                                                    const OwnRow& own_row,
                                                    const OtherRow& other_row,
                                                    T (&scores)[Tiles::kR][Tiles::kN]) {
  FUSED_ATTENTION_UNROLL
  for (int r = 0; r < Tiles::kR; ++r) {
    FUSED_ATTENTION_UNROLL
    for (int n = 0; n < Tiles::kN; ++n) scores[r][n] = 0;
  }
  FUSED_ATTENTION_NO_UNROLL
  for (int column = 0; column < dim; column += Tiles::kChunk) {
    block_sync();
    load_exact_rows(tiles.own(), [&](int row) { return own_row(row, column); });
    load_exact_rows(tiles.other(), [&](int row) { return other_row(row, column); });
    block_sync();
    multiply_exact_rows(tiles.own(), tiles.other(), scores);
  }
}

FUSED_ATTENTION_DEVICE bool is_hidden_weight(float x) {
  return bit_cast<std::uint32_t>(x) == 0x80000000U;
}
FUSED_ATTENTION_DEVICE bool is_hidden_weight(double x) {
  return bit_cast<std::uint64_t>(x) == 0x8000000000000000U;
}

/// sums += W X. `kSkipsHidden`: a weight of -0 stands for a hidden key, and is not multiplied.
template <bool kSkipsHidden, class Weights, class Values, class T, int kR, int kC>
FUSED_ATTENTION_DEVICE void multiply_exact_weights(Weights weights, Values values,
                                                   T (&sums)[kR][kC]) {
  constexpr int kV = kVector<T>;
  FUSED_ATTENTION_NO_UNROLL
  for (int key = 0; key < Weights::kColumns; key += kV) {
    Pack<T, kV> p[kR];
    FUSED_ATTENTION_UNROLL
    for (int r = 0; r < kR; ++r) {
      p[r] = load_shared<Pack<T, kV>>(weights.at(exact_row<kR>(r), key));
    }
    FUSED_ATTENTION_UNROLL
    for (int k = 0; k < kV; ++k) {
      FUSED_ATTENTION_UNROLL
      for (int c = 0; c < kC; c += kV) {
        const auto x = load_shared<Pack<T, kV>>(values.at(key + k, exact_column<T>(c)));
        FUSED_ATTENTION_UNROLL
        for (int r = 0; r < kR; ++r) {
          FUSED_ATTENTION_UNROLL
          for (int v = 0; v < kV; ++v) {
            if (kSkipsHidden && is_hidden_weight(p[r].value[k])) continue;
            sums[r][c + v] = fused_multiply_add(p[r].value[k], x.value[v], sums[r][c + v]);
          }
        }
      }
    }
  }
}

/// sums += W X with W in the tile of weights, and X's rows from `row` (row -> ExactSource). Where
/// some key is hidden from some row, Inf and NaN of X do not meet its weight of 0. Has a barrier
/// before it reads the weights; X's tile must be free.
template <class Tiles, class Row, class T>
FUSED_ATTENTION_DEVICE void add_exact_product(const Tiles& tiles, bool some_hidden, const Row& row,
                                              T (&sums)[Tiles::kR][Tiles::kC]) {
  const bool non_finite = load_exact_rows(tiles.values(), row);
  if (block_any(non_finite && some_hidden)) {
    multiply_exact_weights<true>(tiles.weights(), tiles.values(), sums);
  } else {
    multiply_exact_weights<false>(tiles.weights(), tiles.values(), sums);
  }
}

/// The tiles of a block in shared memory: `kOwn` rows of its own against `kOther` of a tile, a
/// chunk of columns of both; a weight for each pair, and the tile's rows that are summed with them.
template <class T, int kOwn, int kOther, int kChunk_, int kColumns>
struct ExactTiles {
  static constexpr int kChunk = kChunk_;
  static constexpr int kR = kOwn / ExactTile::kLanes;      // rows of a thread
  static constexpr int kN = kOther / ExactTile::kLanes;    // rows of the tile
  static constexpr int kC = kColumns / ExactTile::kLanes;  // columns of a sum
  using Own = ExactRows<T, kOwn, kChunk>;
  using Other = ExactRows<T, kOther, kChunk>;
  using Weights = ExactRows<T, kOwn, kOther>;
  using Values = ExactRows<T, kOther, kColumns>;
  static constexpr int kOtherOffset = Own::kBytes;
  static constexpr int kWeightOffset = kOtherOffset + Other::kBytes;
  static constexpr int kValueOffset = kWeightOffset + Weights::kBytes;
  static constexpr int kBytes = kValueOffset + Values::kBytes;

  FUSED_ATTENTION_DEVICE Own own() const { return shared_tile<Own>(0, "own"); }
  FUSED_ATTENTION_DEVICE Other other() const { return shared_tile<Other>(kOtherOffset, "other"); }
  FUSED_ATTENTION_DEVICE Weights weights() const {
    return shared_tile<Weights>(kWeightOffset, "weights");
  }
  FUSED_ATTENTION_DEVICE Values values() const {
    return shared_tile<Values>(kValueOffset, "values");
  }
};

/// Sum over the threads that share rows.
template <class T>
FUSED_ATTENTION_DEVICE T sum_of_exact_row(T x) {
  FUSED_ATTENTION_UNROLL
  for (int mask = 1; mask < ExactTile::kLanes; mask *= 2) x += shuffle_xor(x, mask);
  return x;
}

/// Writes a block's rows, times a factor of each, to the columns of an operand from `first_column`
/// on. `target(row)`: a RowTarget.
template <class T, int kR, int kC, class Target>
FUSED_ATTENTION_DEVICE void write_exact_rows(const T (&sums)[kR][kC], const T (&factor)[kR],
                                             const core::Operand& to, int first_column, int dim,
                                             const Target& target) {
  FUSED_ATTENTION_UNROLL
  for (int r = 0; r < kR; ++r) {
    const RowTarget row = target(exact_row<kR>(r));
    if (!row.exists) continue;
    const GlobalPtr<T> at = GlobalPtr<T>(static_cast<T*>(to.data)) + row.offset;
    FUSED_ATTENTION_UNROLL
    for (int c = 0; c < kC; ++c) {
      const int column = first_column + exact_column<T>(c);
      if (column < dim) store_global(at + column * to.stride_d, sums[r][c] * factor[r]);
    }
  }
}

}  // namespace fused_attention::cuda
