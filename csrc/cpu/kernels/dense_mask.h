// The dense mask, bool or float, in any broadcast shape and any strides: read in place, tile by
// tile.
#pragma once

#include <cstdint>
#include <type_traits>

#include "convert.h"
#include "pack.h"
#include "panel.h"
#include "simd.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

/// Adds a mask value to scores; -inf hides whatever the score is. A sum of finite values stays
/// finite: no finite number means "hidden", and none makes a row NaN. A score that overflowed stays
/// so.
template <class T>
FUSED_ATTENTION_INLINE Vec<T> add_mask(Vec<T> score, Vec<T> mask) {
  const Vec<T> most = splat(sizeof(T) == 4 ? T(0x1.fffffep127) : T(0x1.fffffffffffffp1023));
  const Vec<T> sum = score + mask;
  const auto finite = (score >= -most) & (score <= most) & (mask <= most);
  const auto too_low = finite & (sum < -most);
  const auto too_high = finite & (sum > most);
  const Vec<T> bounded = too_high ? most : too_low ? -most : sum;
  return mask == splat(-kInfinity<T>) ? mask : bounded;
}

/// Mask values of n keys as what is added to a score: 0 or -inf for a bool mask. Returns whether
/// any of them lets its key be seen.
template <class T>
bool load_mask_row(const core::DenseMask& mask, std::int64_t offset, int n, T* to) {
  if (mask.dtype == core::DType::kBool) {
    const auto* from = static_cast<const unsigned char*>(mask.data) + offset;
    unsigned char any = 0;
    const auto load_bools = [&](std::int64_t stride) {
      for (int j = 0; j < n; ++j) {
        any |= from[j * stride];
        to[j] = from[j * stride] != 0 ? T(0) : -kInfinity<T>;
      }
    };
    // The constant lets the compiler vectorise the usual case.
    if (mask.stride_k == 1) {
      load_bools(1);
    } else {
      load_bools(mask.stride_k);
    }
    return any != 0;
  }
  load_row(mask.dtype, mask.data, offset, mask.stride_k, n, to);
  bool any = false;
  for (int j = 0; j < n; ++j) any |= to[j] != -kInfinity<T>;
  return any;
}

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
    kBits,     // words[key / kWordKeys][row]: bit key % kWordKeys is set where the row sees the key
  };
  using Word = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  Kind kind;
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
      words[lane] = static_cast<std::int32_t>(word);
    }
  }
  if (any == 0) return {Tile::Kind::kHidesAll};
  if (all) return {Tile::Kind::kHidesNothing};
  return {Tile::Kind::kBits, nullptr, static_cast<typename Tile::Word*>(buffer)};
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
  if (same_for_all) {
    const bool any = load_mask_row(mask, offset[0], n, buffer);
    return {any ? Kind::kPerKey : Kind::kHidesAll, buffer};
  }
  if (mask.dtype == core::DType::kBool) {
    return load_mask_words<C>(mask, offset, rows.count, n, buffer);
  }
  bool any = false;
  for (int lane = 0; lane < C::kRows; ++lane) {
    T* row = buffer + lane * kLd;
    if (lane < rows.count) {
      any |= load_mask_row(mask, offset[lane], n, row);
    } else {
      for (int j = 0; j < n; ++j) row[j] = -kInfinity<T>;
    }
  }
  if (!any) return {Kind::kHidesAll};
  T* by_key = buffer + C::kRows * kLd;
  transpose<T>(
      C::kRows, n, [&](int lane) FUSED_ATTENTION_LAMBDA { return buffer + lane * kLd; },
      Unchanged{}, [&](int j) FUSED_ATTENTION_LAMBDA { return by_key + j * C::kRows; });
  return {Kind::kPerPair, by_key};
}

/// Applies a mask to the scores of span.begin <= j < span.end.
template <class C>
void apply_mask_tile(MaskTile<typename C::Scalar> mask, TileSpan span, typename C::Scalar* scores) {
  using T = typename C::Scalar;
  using Kind = typename MaskTile<T>::Kind;
  constexpr int L = kLanes<T>;
  const int n = span.end - span.begin;
  T* at = scores + span.begin * C::kRows;
  const auto for_each_vector = [&](const auto& masked) FUSED_ATTENTION_LAMBDA {
    for (int j = 0; j < n; ++j) {
#pragma GCC unroll 4
      for (int v = 0; v < C::kVectors; ++v, at += L) store(at, masked(j, v, load(at)));
    }
  };
  switch (mask.kind) {
    case Kind::kPerKey:
      for_each_vector([&](int j, int, Vec<T> score) FUSED_ATTENTION_LAMBDA {
        return add_mask<T>(score, splat(mask.values[j]));
      });
      return;
    case Kind::kPerPair:
      for_each_vector([&](int j, int v, Vec<T> score) FUSED_ATTENTION_LAMBDA {
        return add_mask<T>(score, load(mask.values + j * C::kRows + v * L));
      });
      return;
    case Kind::kBits:
      for_each_vector([&](int j, int v, Vec<T> score) FUSED_ATTENTION_LAMBDA {
        VecBits<T> word;
        __builtin_memcpy(&word, mask.words + j / kWordKeys * C::kRows + v * L, sizeof word);
        const auto bit = static_cast<std::int32_t>(1U << j % kWordKeys);
        return (word & bit) != 0 ? score : splat(-kInfinity<T>);
      });
      return;
    case Kind::kHidesAll:
    case Kind::kHidesNothing:
      return;
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
  T value;
  load_mask_row(
      problem.mask,
      core::mask_offset(problem.mask, rows.batch, rows.head[lane], rows.position[lane], j), 1,
      &value);
  return value != -kInfinity<T>;
}

FUSED_ATTENTION_END_ISA_NAMESPACE
