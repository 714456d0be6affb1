// The dense mask, bool or float, in any broadcast shape and any strides: read in place, tile by
// tile.
#pragma once

#include <cstdint>
#include <type_traits>

#include "mask_values.h"
#include "panel.h"
#include "simd.h"
#include "transpose.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// Elements of the buffer of a MaskTile.
template <class C>
constexpr std::int64_t kMaskBuffer = 2 * static_cast<std::int64_t>(C::kRows) * (kTileKeys + 16);

/// Keys whose bits share a word.
constexpr int kWordKeys = 32;

/// The mask of one panel and the keys of one span, in the cheapest form that says it all.
template <class T>
struct MaskTile {
  enum class Kind {
    kHidesAll,
    kHidesNothing,
    kPerKey,   // values[key]: all rows have the same, as with a padding mask
    kPerPair,  // values[key][row]
    kBits,     // words[key / kWordKeys][row]: a bit is set where the row sees the key
  };
  /// Bit key % kWordKeys of the upper 32 bits.
  using Word = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  Kind kind;
  Adding adding = Adding::kBounded;
  const T* values = nullptr;
  const Word* words = nullptr;
};

/// Bit i is set where p[i] != 0, 0 <= i < n <= kWordKeys.
FUSED_ATTENTION_INLINE std::uint32_t nonzero_bits(const unsigned char* p, int n) {
#if FUSED_ATTENTION_VECTOR_BYTES >= 32
  if (n == kWordKeys) {
    __m256i bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    return ~static_cast<std::uint32_t>(
        _mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256())));
  }
#endif
  std::uint32_t bits = 0;
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    std::uint64_t bytes;
    __builtin_memcpy(&bytes, p + i, sizeof bytes);
    // Any bit of a byte to its lowest, then the lowest bits side by side.
    bytes |= bytes >> 4;
    bytes |= bytes >> 2;
    bytes |= bytes >> 1;
    bytes = (bytes & 0x0101010101010101U) * 0x0102040810204080U;
    bits |= static_cast<std::uint32_t>(bytes >> 56) << i;
  }
  for (; i < n; ++i) bits |= (p[i] != 0 ? 1U : 0U) << i;
  return bits;
}

/// A bool mask as bits: a 32nd of what the values would take, and no transposition.
template <class C>
MaskTile<typename C::Scalar> load_mask_words(const core::DenseMask& mask,
                                             const std::int64_t (&offset)[C::kRows], int count,
                                             int n, void* buffer) {
  using Tile = MaskTile<typename C::Scalar>;
  constexpr int kUnused = 8 * sizeof(typename Tile::Word) - kWordKeys;
  auto* words = static_cast<typename Tile::Word*>(buffer);
  const auto* data = static_cast<const unsigned char*>(mask.data);
  std::uint32_t any = 0;
  bool all = count == C::kRows;
  for (int j = 0; j < n; j += kWordKeys, words += C::kRows) {
    const int keys = n - j < kWordKeys ? n - j : kWordKeys;
    const std::uint32_t every_key = ~0U >> (kWordKeys - keys);
    for (int lane = 0; lane < C::kRows; ++lane) {
      std::uint32_t word = 0;
      if (lane < count) {
        const unsigned char* row = data + offset[lane] + j * mask.stride_k;
        if (mask.stride_k == 1) {
          word = nonzero_bits(row, keys);
        } else {
          for (int i = 0; i < keys; ++i) word |= (row[i * mask.stride_k] != 0 ? 1U : 0U) << i;
        }
      }
      any |= word;
      all &= word == every_key;
      words[lane] = static_cast<typename Tile::Word>(static_cast<std::uint64_t>(word) << kUnused);
    }
  }
  if (any == 0) return {Tile::Kind::kHidesAll};
  if (all) return {Tile::Kind::kHidesNothing};
  return {.kind = Tile::Kind::kBits, .words = static_cast<typename Tile::Word*>(buffer)};
}

/// `buffer`: kMaskBuffer elements, which the result points into.
template <class C>
MaskTile<typename C::Scalar> load_mask_tile(const core::DenseMask& mask, const PanelRows<C>& rows,
                                            std::int64_t tile_first, TileSpan span,
                                            typename C::Scalar* buffer) {
  using T = typename C::Scalar;
  using Kind = typename MaskTile<T>::Kind;
  constexpr std::int64_t kLd = kTileKeys + 16;
  const int n = span.end - span.begin;
  std::int64_t offset[C::kRows] = {};
  bool same_for_all = true;
  for (int lane = 0; lane < rows.count; ++lane) {
    offset[lane] = core::mask_offset(mask, rows.batch, rows.head[lane], rows.position[lane],
                                     tile_first + span.begin);
    same_for_all &= offset[lane] == offset[0];
  }
  const bool of_bools = mask.dtype == core::DType::kBool;
  if (same_for_all) {
    const T* values = read_mask_row(mask, offset[0], n, buffer);
    const Adding adding = choose_adding(&values, 1, n);
    if (adding != Adding::kPlain && hides_all(&values, 1, n)) return {Kind::kHidesAll};
    if (of_bools && adding == Adding::kPlain) return {Kind::kHidesNothing};
    return {Kind::kPerKey, adding, values};
  }
  if (of_bools) return load_mask_words<C>(mask, offset, rows.count, n, buffer);
  const T* row[C::kRows];
  for (int lane = 0; lane < C::kRows; ++lane) {
    T* copy = buffer + lane * kLd;
    row[lane] = copy;
    if (lane < rows.count) {
      row[lane] = read_mask_row(mask, offset[lane], n, copy);
    } else {
      __builtin_memset(copy, 0, sizeof(T) * static_cast<std::size_t>(n));
    }
  }
  const Adding adding = choose_adding(row, rows.count, n);
  if (adding != Adding::kPlain && hides_all(row, rows.count, n)) return {Kind::kHidesAll};
  T* by_key = buffer + C::kRows * kLd;
  transpose<T>(
      C::kRows, n, [&](int lane) FUSED_ATTENTION_LAMBDA { return row[lane]; }, Unchanged{},
      [&](int j) FUSED_ATTENTION_LAMBDA { return by_key + j * C::kRows; });
  return {Kind::kPerPair, adding, by_key};
}

/// scores += mask.values, of all rows or of each.
template <class C, Adding adding>
void add_mask_values(const MaskTile<typename C::Scalar>& mask, int n, typename C::Scalar* scores) {
  using T = typename C::Scalar;
  constexpr int L = kLanes<T>;
  const bool per_key = mask.kind == MaskTile<T>::Kind::kPerKey;
  const auto add = [&](const auto& value) FUSED_ATTENTION_LAMBDA {
    for (int j = 0; j < n; ++j) {
#pragma GCC unroll 4
      for (int v = 0; v < C::kVectors; ++v) {
        T* at = scores + j * C::kRows + v * L;
        store(at, add_mask<T, adding>(load(at), value(j, v)));
      }
    }
  };
  if (per_key) {
    add([&](int j, int) FUSED_ATTENTION_LAMBDA { return splat(mask.values[j]); });
  } else {
    add([&](int j, int v)
            FUSED_ATTENTION_LAMBDA { return load(mask.values + j * C::kRows + v * L); });
  }
}

/// Hides the scores whose bit is not set. The bit of a key is moved into the sign, which is what
/// selects, so the keys of a word come last to first.
template <class C>
void hide_by_words(const typename MaskTile<typename C::Scalar>::Word* words, int n,
                   typename C::Scalar* scores) {
  using T = typename C::Scalar;
  constexpr int L = kLanes<T>;
  for (int first = 0; first < n; first += kWordKeys, words += C::kRows) {
    const int keys = n - first < kWordKeys ? n - first : kWordKeys;
    VecBits<T> bits[C::kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < C::kVectors; ++v) {
      __builtin_memcpy(&bits[v], words + v * L, sizeof bits[v]);
      bits[v] <<= kWordKeys - keys;
    }
    for (int j = first + keys - 1; j >= first; --j) {
#pragma GCC unroll 4
      for (int v = 0; v < C::kVectors; ++v) {
        T* at = scores + j * C::kRows + v * L;
        store(at, bits[v] < 0 ? load(at) : splat(-kInfinity<T>));
        bits[v] <<= 1;
      }
    }
  }
}

/// Applies a mask to the scores of span.begin <= j < span.end.
template <class C>
void apply_mask_tile(const MaskTile<typename C::Scalar>& mask, TileSpan span,
                     typename C::Scalar* scores) {
  using Kind = typename MaskTile<typename C::Scalar>::Kind;
  const int n = span.end - span.begin;
  scores += span.begin * C::kRows;
  if (mask.kind == Kind::kBits) {
    hide_by_words<C>(mask.words, n, scores);
  } else if (mask.kind == Kind::kPerKey || mask.kind == Kind::kPerPair) {
    switch (mask.adding) {
      case Adding::kPlain:
        return add_mask_values<C, Adding::kPlain>(mask, n, scores);
      case Adding::kHiding:
        return add_mask_values<C, Adding::kHiding>(mask, n, scores);
      case Adding::kBounded:
        return add_mask_values<C, Adding::kBounded>(mask, n, scores);
    }
  }
}

/// Whether the row of `lane` sees key j: the scalar form, for the rare paths.
template <class C>
FUSED_ATTENTION_INLINE bool sees(const core::Problem& problem, const PanelRows<C>& rows, int lane,
                                 std::int64_t j) {
  using T = typename C::Scalar;
  if (lane >= rows.count) return false;
  const auto keys = core::visible_keys(problem.band, rows.position[lane], problem.sizes.seq_k);
  if (j < keys.begin || j >= keys.end) return false;
  if (problem.mask.data == nullptr) return true;
  T copy;
  const T* value = read_mask_row(
      problem.mask,
      core::mask_offset(problem.mask, rows.batch, rows.head[lane], rows.position[lane], j), 1,
      &copy);
  return *value != -kInfinity<T>;
}

FUSED_ATTENTION_END_ISA_NAMESPACE
