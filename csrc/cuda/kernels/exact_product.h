// Tiles and products of the kernels without tensor cores. A block is 16 x 16 threads: the threads
// of a row of lanes share query rows, and each has every 16th key.
#pragma once

#include "../arch/device.h"
#include "../tile_config.h"

namespace fused_attention::cuda {

FUSED_ATTENTION_DEVICE int exact_lane() { return thread_index() % ExactTile::kLanes; }

/// Row `r` of the calling thread's kR rows.
template <int kR>
FUSED_ATTENTION_DEVICE int exact_row(int r) {
  return thread_index() / ExactTile::kLanes * kR + r;
}

/// Elements of a 16-byte vector.
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

/// Column `c` of the calling thread's output columns: vectors of neighbours.
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

/// Fills a tile from source(row), with zeros where there is nothing. Returns whether the calling
/// thread loaded Inf or NaN.
template <int kThreads, class TileType, class Source>
FUSED_ATTENTION_DEVICE bool load_exact_rows(TileType tile, const Source& source) {
  using T = typename TileType::Element;
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

/// scores += Q K^T over the columns of the tiles.
template <class Queries, class Keys, class T, int kR, int kN>
FUSED_ATTENTION_DEVICE void multiply_exact_rows(Queries queries, Keys keys, T (&scores)[kR][kN]) {
  constexpr int kV = kVector<T>;
  FUSED_ATTENTION_NO_UNROLL
  for (int column = 0; column < Queries::kColumns; column += kV) {
    Pack<T, kV> q[kR];
    FUSED_ATTENTION_UNROLL
    for (int r = 0; r < kR; ++r) {
      q[r] = load_shared<Pack<T, kV>>(queries.at(exact_row<kR>(r), column));
    }
    FUSED_ATTENTION_UNROLL
    for (int n = 0; n < kN; ++n) {
      const auto k =
          load_shared<Pack<T, kV>>(keys.at(exact_lane() + n * ExactTile::kLanes, column));
      FUSED_ATTENTION_UNROLL
      for (int r = 0; r < kR; ++r) {
        FUSED_ATTENTION_UNROLL
        for (int v = 0; v < kV; ++v) {
          scores[r][n] = fused_multiply_add(q[r].value[v], k.value[v], scores[r][n]);
        }
      }
    }
  }
}

FUSED_ATTENTION_DEVICE bool is_hidden_weight(float x) {
  return bit_cast<std::uint32_t>(x) == 0x80000000U;
}
FUSED_ATTENTION_DEVICE bool is_hidden_weight(double x) {
  return bit_cast<std::uint64_t>(x) == 0x8000000000000000U;
}

/// output += P V. `kSkipsHidden`: a weight of -0 stands for a hidden key, and is not multiplied.
template <bool kSkipsHidden, class Weights, class Values, class T, int kR, int kC>
FUSED_ATTENTION_DEVICE void multiply_exact_weights(Weights weights, Values values,
                                                   T (&output)[kR][kC]) {
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
            output[r][c + v] = fused_multiply_add(p[r].value[k], x.value[v], output[r][c + v]);
          }
        }
      }
    }
  }
}

}  // namespace fused_attention::cuda
