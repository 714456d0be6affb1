// Inf and NaN among values never meet a weight of 0: a hidden one has no influence on anything.
//
// In a tile in which some row does not see some key, whoever copied such a number replaces it by 0
// before the tile is used. If anybody did, a slow pass at the end of the block adds these numbers
// to the rows that see them; what they are multiplied with no longer matters.
#pragma once

#include <type_traits>

#include "copy.h"
#include "dense_mask.h"
#include "scores.h"

namespace fused_attention::cuda {

/// Bit 15 of each half of a word is set where the exponent of that number is all ones.
template <class E>
FUSED_ATTENTION_DEVICE std::uint32_t non_finite_halves(std::uint32_t word) {
  // The exponent plus one in its last place carries into the sign bit only if it is all ones.
  constexpr bool kIsBFloat16 = std::is_same_v<E, BFloat16>;
  constexpr std::uint32_t kExponent = kIsBFloat16 ? 0x7F807F80U : 0x7C007C00U;
  constexpr std::uint32_t kOne = kIsBFloat16 ? 0x00800080U : 0x04000400U;
  return ((word & kExponent) + kOne) & 0x80008000U;
}

/// Replaces Inf and NaN in the chunks that the calling thread copied into a tile, and raises its
/// flag if there are any.
template <class E, int kThreads, class TileType, class Table>
FUSED_ATTENTION_DEVICE void clear_own_non_finite(CopyLane<kThreads> lane, TileType tile,
                                                 Table table) {
  lane.for_each_chunk(tile, [&](int /*pass*/, int /*panel*/, SharedPtr at) {
    auto words = load_shared<Words4>(at);
    std::uint32_t found = 0;
    FUSED_ATTENTION_UNROLL
    for (int n = 0; n < 4; ++n) {
      const std::uint32_t halves = non_finite_halves<E>(words.value[n]);
      words.value[n] &= ~((halves >> 15) * 0xFFFFU);
      found |= halves;
    }
    if (found != 0) {
      store_shared(at, words);
      table.raise_flag();
    }
  });
}

/// f(n, i, x) for the numbers x = base[offset + (8 n + i) stride_d], n < kN and i < 2, that are Inf
/// or NaN: a lane's columns of a row, of which there are `columns`.
template <class E, int kN, class F>
FUSED_ATTENTION_DEVICE void for_each_non_finite_pair(GlobalPtr<const E> base, std::int64_t offset,
                                                     std::int64_t stride_d, std::int64_t columns,
                                                     const F& f) {
  // Opaque, or all comparisons and addresses would be made before the caller's loop, and kept.
  columns = opaque(columns);
  GlobalPtr<const E> at = base + opaque(offset);
  FUSED_ATTENTION_UNROLL
  for (int n = 0; n < kN; ++n) {
    FUSED_ATTENTION_UNROLL
    for (int i = 0; i < 2; ++i) {
      if (n * 8 + i < columns) {
        const E element = load_global<E>(at + i * stride_d);
        if (non_finite_halves<E>(element.bits) != 0) f(n, i, to_float(element));
      }
    }
    at = at + 8 * stride_d;
  }
}

/// sums += x for each Inf and NaN x of V's columns that are the block's, for the keys of tiles that
/// are not full, where the row sees the key. Written for few registers beside the sums, not for
/// speed.
template <class E, class C, class Rows, int kM, int kN>
FUSED_ATTENTION_DEVICE void add_non_finite_values(const core::Problem& problem, const Rows& rows,
                                                  Accumulator<kM, kN>& sums) {
  const core::ConstOperand& x = problem.value;
  const BlockRows block = rows.table.rows();
  const BlockKeys keys = rows.table.keys();
  const BlockBand band = rows.table.band();
  const bool has_mask = C::kGeneral && problem.mask.data != nullptr;
  const std::int64_t head_kv = block.first_head / core::group_size(problem.sizes);
  const int column = block.first_value + fragment_column();
  const GlobalPtr<const E> base(static_cast<const E*>(x.data));
  std::int64_t row = block.batch * x.stride_b + head_kv * x.stride_h + keys.begin * x.stride_s +
                     column * x.stride_d;
  FUSED_ATTENTION_NO_UNROLL
  for (int key = keys.begin; key < keys.end; ++key, row += x.stride_s) {
    if (!has_mask && keys.template is_full<C::kKeys>(key / C::kKeys * C::kKeys)) continue;
    const auto for_each_non_finite = [&](const auto& f) {
      for_each_non_finite_pair<E, kN>(base, row, x.stride_d, problem.sizes.dim_v - column, f);
    };
    bool any = false;
    for_each_non_finite([&](int, int, float) { any = true; });
    if (!any) continue;
    unsigned seen = 0;  // bit m * 2 + half
    FUSED_ATTENTION_NO_UNROLL
    for (int n = 0; n < kM * 2; ++n) {
      const RowPlace place = rows.table.place(rows.row(n / 2, n % 2));
      bool sees = band.sees(place.position, key);
      if (has_mask && sees) {
        const std::int64_t offset =
            core::mask_offset(problem.mask, block.batch, block.first_head + place.head,
                              block.first_position + place.position, key);
        sees = load_mask(problem.mask, offset) != -kInfinity;
      }
      seen |= static_cast<unsigned>(sees) << n;
    }
    for_each_non_finite([&](int n, int i, float element) {
      FUSED_ATTENTION_UNROLL
      for (int m = 0; m < kM; ++m) {
        FUSED_ATTENTION_UNROLL
        for (int half = 0; half < 2; ++half) {
          if ((seen >> (m * 2 + half) & 1) != 0) sums.value[m][n][half * 2 + i] += element;
        }
      }
    });
  }
}

}  // namespace fused_attention::cuda
