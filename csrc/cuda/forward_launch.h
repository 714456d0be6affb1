// From a forward problem to a launch: which kernel, which grid, how much shared memory. Torch-free;
// a launcher, of the GPU or of the emulator, starts the kernel.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "../core/problem.h"
#include "../core/schedule.h"
#include "kernels/forward.h"
#include "kernels/forward_exact.h"
#include "kernels/merge.h"
#include "key_split.h"
#include "launch.h"
#include "tile_config.h"

namespace fused_attention::cuda {

/// Whether all rows consist of 16-byte chunks at addresses that are multiples of 16.
template <class Operand>
bool is_in_chunks(const Operand& x, std::int64_t dim, int element_bytes) {
  const std::int64_t elements = kChunkBytes / element_bytes;
  const auto aligned = [&](std::int64_t stride) { return stride % elements == 0; };
  return x.stride_d == 1 && dim % elements == 0 && aligned(x.stride_s) && aligned(x.stride_h) &&
         aligned(x.stride_b) && reinterpret_cast<std::uintptr_t>(x.data) % kChunkBytes == 0;
}

/// The first tile of a table that holds the head dims, else the last one, which cuts Dv; -1 if D is
/// too large for that one, too.
template <class Tile, std::size_t n>
constexpr int find_tile(const Tile (&tiles)[n], std::int64_t dim_qk, std::int64_t dim_v) {
  for (std::size_t index = 0; index < n; ++index) {
    if (dim_qk <= tiles[index].dim_qk && dim_v <= tiles[index].dim_v) {
      return static_cast<int>(index);
    }
  }
  return dim_qk <= tiles[n - 1].dim_qk ? static_cast<int>(n) - 1 : -1;
}

static_assert(kPlainForwardTiles[std::size(kPlainForwardTiles) - 1].dim_qk == kLargestHeadDim);
static_assert(kGeneralForwardTiles[std::size(kGeneralForwardTiles) - 1].dim_qk == kLargestHeadDim);

/// Calls f with the index as a constant: f(std::integral_constant<int, index>).
template <int n, class F>
void visit_index(int index, const F& f) {
  [&]<int... candidates>(std::integer_sequence<int, candidates...>) {
    ((index == candidates ? f(std::integral_constant<int, candidates>()) : void()), ...);
  }(std::make_integer_sequence<int, n>());
}

/// Whether the plain kernels can do it: band masks only, rows in chunks, a scale that is positive
/// and far from fp32's limits.
inline bool is_plain(const core::Problem& problem, bool in_chunks, float scale_log2) {
  return problem.mask.data == nullptr && in_chunks && scale_log2 > 0x1p-100F &&
         scale_log2 < 0x1p100F;
}
inline bool is_plain(const ForwardParams& params) {
  const bool in_chunks = params.query_in_chunks && params.key_in_chunks && params.value_in_chunks &&
                         params.output_in_chunks;
  return is_plain(params.call.problem, in_chunks, params.scale_log2);
}

/// Starts the kernel that merges the chunks of all rows, if there are any.
template <class E, class Launcher>
void start_merge(const ForwardParams& params, const Launcher& launcher) {
  using C = MergeConfig<E>;
  const core::Sizes& sizes = params.call.problem.sizes;
  const std::int64_t rows = sizes.batch * sizes.heads_q * sizes.seq_q;
  if (params.chunks == 1 || rows == 0) return;
  launcher.template operator()<C>(
      make_launch(core::ceil_div(rows, C::kTile.rows), C::kThreads, C::kSharedBytes), params);
}

/// Completes the parameters for one kernel and starts it through
/// launcher.template operator()<Config>(launch, params); nothing if there are no rows.
template <class C, class Launcher>
void start_forward(ForwardParams params, const Launcher& launcher) {
  const core::Sizes& sizes = params.call.problem.sizes;
  params.rows = schedule_blocks(sizes, C::kRows);
  params.value_slices = static_cast<int>(core::ceil_div(sizes.dim_v, C::kColumns));
  const std::int64_t blocks =
      params.rows.heads * params.rows.blocks * params.value_slices * params.chunks;
  if (blocks == 0) return;
  launcher.template operator()<C>(make_launch(blocks, C::kThreads, C::kSharedBytes), params);
}

inline ForwardParams forward_params(const core::ForwardProblem& call, const KeySplit& split) {
  ForwardParams params;
  params.call = call;
  params.chunks = split.chunks;
  params.partials = split.partials;
  return params;
}

/// start(Usual()) where a block may have as much shared memory as that takes, else start(Small()),
/// which every GPU has room for.
template <class Usual, class Small, class Launcher, class Start>
void start_fitting(const Launcher& launcher, const Start& start) {
  static_assert(Small::kSharedBytes <= kLeastSharedBytes);
  if constexpr (Usual::kSharedBytes <= kLeastSharedBytes) {
    start(Usual());
  } else if (Usual::kSharedBytes <= launcher.most_shared_bytes()) {
    start(Usual());
  } else {
    start(Small());
  }
}

template <class E, ForwardTile kTile, bool kGeneral, class Launcher>
void start_half_forward(const ForwardParams& params, const Launcher& launcher) {
  constexpr int kSmall = find_tile(kSmallForwardTiles, kTile.dim_qk, kTile.dim_v);
  start_fitting<ForwardConfig<E, kTile, kGeneral>,
                ForwardConfig<E, kSmallForwardTiles[kSmall], true>>(
      launcher, [&](auto config) { start_forward<decltype(config)>(params, launcher); });
}

/// A problem of 16-bit elements E. False if no kernel holds D.
template <class E, class Launcher>
bool forward_half(const core::ForwardProblem& call, const KeySplit& split,
                  const Launcher& launcher) {
  const core::Sizes& sizes = call.problem.sizes;
  ForwardParams params = forward_params(call, split);
  params.scale = static_cast<float>(call.problem.scale);
  params.scale_log2 = static_cast<float>(call.problem.scale * 1.4426950408889634);
  params.query_in_chunks = is_in_chunks(call.problem.query, sizes.dim_qk, sizeof(E));
  params.key_in_chunks = is_in_chunks(call.problem.key, sizes.dim_qk, sizeof(E));
  params.value_in_chunks = is_in_chunks(call.problem.value, sizes.dim_v, sizeof(E));
  params.output_in_chunks = is_in_chunks(call.output, sizes.dim_v, sizeof(E));
  if (is_plain(params) && params.chunks == 1) {
    const int index = find_tile(kPlainForwardTiles, sizes.dim_qk, sizes.dim_v);
    visit_index<std::size(kPlainForwardTiles)>(index, [&](auto constant) {
      start_half_forward<E, kPlainForwardTiles[constant], false>(params, launcher);
    });
    return index >= 0;
  }
  const int index = find_tile(kGeneralForwardTiles, sizes.dim_qk, sizes.dim_v);
  visit_index<std::size(kGeneralForwardTiles)>(index, [&](auto constant) {
    start_half_forward<E, kGeneralForwardTiles[constant], true>(params, launcher);
    start_merge<E>(params, launcher);
  });
  return index >= 0;
}

template <class T>
constexpr const auto& exact_forward_tiles() {
  if constexpr (sizeof(T) == 4) {
    return kFloatForwardTiles;
  } else {
    return kDoubleForwardTiles;
  }
}

/// A problem of fp32 or fp64, of any D.
template <class T, class Launcher>
void forward_exact(const core::ForwardProblem& call, const KeySplit& split,
                   const Launcher& launcher) {
  constexpr const auto& tiles = exact_forward_tiles<T>();
  const ForwardParams params = forward_params(call, split);
  constexpr int kTiles = static_cast<int>(std::size(tiles));
  int index = 0;
  while (index + 1 < kTiles && tiles[index].columns < call.problem.sizes.dim_v) ++index;
  visit_index<kTiles>(index, [&](auto constant) {
    start_forward<ExactForwardConfig<T, tiles[constant]>>(params, launcher);
    start_merge<T>(params, launcher);
  });
}

}  // namespace fused_attention::cuda
