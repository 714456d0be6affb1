// A block of keys, and the rows that see them.
#pragma once

#include "backward_scores.h"
#include "dense_mask.h"
#include "non_finite.h"
#include "row_list.h"

namespace fused_attention::cuda {

/// Which sums a kernel computes.
enum class KeyGradients { kBoth, kKey, kValue };

struct KeyBlock {
  RowList rows;
  std::int64_t head_kv;
  int first;           // key
  int count;           // keys that exist
  std::int64_t begin;  // of the first row tile with a row that sees some key
  std::int64_t end;    // rows that see some key end here

  /// Element offset of a key of the block in a (B, Hkv, Sk, D) operand.
  template <class Operand>
  FUSED_ATTENTION_DEVICE std::int64_t offset(const Operand& x, int key) const {
    return rows.batch * x.stride_b + head_kv * x.stride_h + (first + key) * x.stride_s;
  }
  FUSED_ATTENTION_DEVICE RowTarget target(const core::Operand& to, int key) const {
    return {key < count, offset(to, key)};
  }
};

/// `pair` = b * Hkv + key-value head. Row tiles begin at multiples of `tile_rows`.
FUSED_ATTENTION_DEVICE KeyBlock key_block(const core::Problem& problem, std::int64_t pair,
                                          int first, int keys, int tile_rows) {
  const core::Sizes& sizes = problem.sizes;
  KeyBlock block;
  block.rows.batch = pair / sizes.heads_kv;
  block.head_kv = pair - block.rows.batch * sizes.heads_kv;
  block.rows.group = core::group_size(sizes);
  block.rows.first_head = block.head_kv * block.rows.group;
  block.rows.count = block.rows.group * sizes.seq_q;
  block.first = first;
  block.count = static_cast<int>(core::min64(keys, sizes.seq_k - first));
  const core::KeyInterval positions =
      core::rows_of_any_key(problem.band, first, first + block.count - 1, sizes.seq_q);
  const bool empty = positions.begin >= positions.end;
  block.begin = empty ? 0 : positions.begin * block.rows.group / tile_rows * tile_rows;
  block.end = empty ? 0 : positions.end * block.rows.group;
  return block;
}

/// Whether all rows of a tile see all keys of the block through the band.
FUSED_ATTENTION_DEVICE bool sees_all_keys(const core::Problem& problem, const KeyBlock& block,
                                          std::int64_t first_row, int tile_rows, int keys) {
  const std::int64_t last_row = core::min64(first_row + tile_rows, block.rows.count) - 1;
  const core::KeyInterval every =
      core::keys_of_every_row(problem.band, block.rows.place(first_row).position,
                              block.rows.place(last_row).position, problem.sizes.seq_k);
  return every.begin <= block.first && block.first + keys <= every.end;
}

/// The statistics of a tile's rows, with their positions; weights of 0 for rows that do not exist.
template <int kRows, int kThreads>
FUSED_ATTENTION_DEVICE void load_row_statistics(const BackwardParams& params, const RowList& list,
                                                std::int64_t first, SharedPtr to) {
  const core::Sizes& sizes = params.call.problem.sizes;
  for (int row = thread_index(); row < kRows; row += kThreads) {
    RowStatistics x{kInfinity, 0, 0, 0};
    if (first + row < list.count) {
      const ListPlace place = list.place(first + row);
      const GlobalPtr<const RowStatistics> from(
          static_cast<const RowStatistics*>(params.statistics));
      x = load_global<RowStatistics>(
          from + ((list.batch * sizes.heads_q + place.head) * sizes.seq_q + place.position));
      x.position = static_cast<std::int32_t>(place.position);
    }
    store_shared(to + row * 16, x);
  }
}

/// As load_mask_tile, for the rows of the list from `first` on and the keys from `first_key` on.
template <int kThreads, int kRows, int kKeys, int kPad>
FUSED_ATTENTION_DEVICE bool load_mask_for_keys(const core::Problem& problem, const KeyBlock& block,
                                               std::int64_t first, int first_key,
                                               MaskTile<kRows, kKeys, kPad> tile) {
  static_assert(kThreads % kKeys == 0);
  const core::DenseMask& mask = problem.mask;
  const int key = thread_index() % kKeys;
  bool any = false;
  FUSED_ATTENTION_NO_UNROLL
  for (int row = thread_index() / kKeys; row < kRows; row += kThreads / kKeys) {
    float value = -kInfinity;
    if (key < block.count && first + row < block.rows.count) {
      const ListPlace place = block.rows.place(first + row);
      value = load_mask(mask, core::mask_offset(mask, block.rows.batch, place.head, place.position,
                                                first_key + key));
    }
    any |= value != -kInfinity;
    store_shared(tile.at(row, key), value);
  }
  return any;
}

/// One flag for each thread, in shared memory.
struct ThreadFlags {
  SharedPtr base;

  FUSED_ATTENTION_DEVICE SharedPtr own() const { return base + thread_index() * 4; }
  FUSED_ATTENTION_DEVICE void clear() const { store_shared(own(), 0); }
  FUSED_ATTENTION_DEVICE void raise_flag() const { store_shared(own(), 1); }
  FUSED_ATTENTION_DEVICE bool has_flag() const { return load_shared<int>(own()) != 0; }
};

struct NoFlags {
  FUSED_ATTENTION_DEVICE void raise_flag() const {}
};

/// sums += x for each Inf and NaN x of dO's columns from `first_column` on, where the row sees the
/// key, in the row tiles where some row does not see some key. Written for few registers, not for
/// speed.
template <class E, class C, int kM, int kN>
FUSED_ATTENTION_DEVICE void add_non_finite_grads(const BackwardParams& params,
                                                 const KeyBlock& block, int warp_key,
                                                 int first_column, Accumulator<kM, kN>& sums) {
  static_assert(kM == 1);
  const core::Problem& problem = params.call.problem;
  const core::ConstOperand& x = params.call.grad_output;
  const bool has_mask = C::kGeneral && problem.mask.data != nullptr;
  const GlobalPtr<const E> base(static_cast<const E*>(x.data));
  const int column = first_column + fragment_column();
  FUSED_ATTENTION_NO_UNROLL
  for (std::int64_t row = block.begin; row < block.end; ++row) {
    if (!has_mask && sees_all_keys(problem, block, row / C::kRows * C::kRows, C::kRows, C::kKeys)) {
      continue;
    }
    const std::int64_t offset = list_offset(x, block.rows, row) + column * x.stride_d;
    const auto for_each_non_finite = [&](const auto& f) {
      for_each_non_finite_pair<E, kN>(base, offset, x.stride_d, problem.sizes.dim_v - column, f);
    };
    bool any = false;
    for_each_non_finite([&](int, int, float) { any = true; });
    if (!any) continue;
    const ListPlace place = block.rows.place(row);
    const core::KeyInterval keys =
        core::visible_keys(problem.band, place.position, problem.sizes.seq_k);
    unsigned seen = 0;  // bit of each half
    FUSED_ATTENTION_NO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int key = block.first + warp_key + fragment_row(half);
      bool sees = key >= keys.begin && key < keys.end;
      if (has_mask && sees) {
        sees = load_mask(problem.mask, core::mask_offset(problem.mask, block.rows.batch, place.head,
                                                         place.position, key)) != -kInfinity;
      }
      seen |= static_cast<unsigned>(sees) << half;
    }
    for_each_non_finite([&](int n, int i, float element) {
      FUSED_ATTENTION_UNROLL
      for (int half = 0; half < 2; ++half) {
        if ((seen >> half & 1) != 0) sums.value[0][n][half * 2 + i] += element;
      }
    });
  }
}

}  // namespace fused_attention::cuda
