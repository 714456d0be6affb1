// From a backward problem to launches. Torch-free; see forward_launch.h.
#pragma once

#include "forward_launch.h"
#include "kernels/backward_key.h"

namespace fused_attention::cuda {

static_assert(sizeof(RowStatistics) == kStatisticsFloats * sizeof(float));
static_assert(kQueryGradientTiles[std::size(kQueryGradientTiles) - 1].dim ==
              kLargestBackwardHeadDim);

template <class C, class Launcher>
void start_query_gradient(BackwardParams params, const Launcher& launcher) {
  const core::TileLimits limits{C::kRows, 1, std::numeric_limits<std::int64_t>::max(), C::kKeys};
  params.rows = core::schedule_rows(params.call.problem.sizes, limits, 1);
  const std::int64_t blocks = params.rows.heads * params.rows.blocks;
  if (blocks == 0) return;
  launcher.template operator()<C>(make_launch(blocks, C::kThreads, C::kSharedBytes), params);
}

template <class C, class Launcher>
void start_key_gradient(BackwardParams params, const Launcher& launcher) {
  const core::Sizes& sizes = params.call.problem.sizes;
  params.rows.heads = sizes.batch * sizes.heads_kv;
  params.key_blocks = core::ceil_div(sizes.seq_k, C::kKeys);
  const std::int64_t blocks = params.rows.heads * params.key_blocks;
  if (blocks == 0) return;
  launcher.template operator()<C>(make_launch(blocks, C::kThreads, C::kSharedBytes), params);
}

/// All kernels for one pair of tiles. The one of dQ comes first, and always: it prepares the rows.
template <class E, int index, bool kGeneral, class Launcher>
void start_backward(const BackwardParams& params, const Launcher& launcher) {
  constexpr BackwardTile kKeyTile = kKeyGradientTiles[index];
  const bool wants_key = params.call.grad_key.data != nullptr;
  const bool wants_value = params.call.grad_value.data != nullptr;
  start_query_gradient<QueryGradientConfig<E, kQueryGradientTiles[index], kGeneral>>(params,
                                                                                     launcher);
  if constexpr (kKeyTile.dim <= 128) {
    if (!wants_key && !wants_value) return;
    start_key_gradient<KeyGradientConfig<E, kKeyTile, KeyGradients::kBoth, kGeneral>>(params,
                                                                                      launcher);
  } else {
    if (wants_key) {
      start_key_gradient<KeyGradientConfig<E, kKeyTile, KeyGradients::kKey, kGeneral>>(params,
                                                                                       launcher);
    }
    if (wants_value) {
      start_key_gradient<KeyGradientConfig<E, kKeyTile, KeyGradients::kValue, kGeneral>>(params,
                                                                                         launcher);
    }
  }
}

/// A problem of 16-bit elements E, with room for the statistics of (B, Hq, Sq) rows. False if no
/// kernel holds D and Dv.
template <class E, class Launcher>
bool backward_half(const core::BackwardProblem& call, RowStatistics* statistics,
                   const Launcher& launcher) {
  constexpr int kTiles = static_cast<int>(std::size(kQueryGradientTiles));
  static_assert(std::size(kKeyGradientTiles) == kTiles);
  const core::Sizes& sizes = call.problem.sizes;
  BackwardParams params;
  params.call = call;
  params.statistics = statistics;
  params.scale = static_cast<float>(call.problem.scale);
  params.scale_log2 = static_cast<float>(call.problem.scale * 1.4426950408889634);
  const auto in_chunks = [](const auto& x, std::int64_t dim) {
    return x.data == nullptr || is_in_chunks(x, dim, sizeof(E));
  };
  params.in_chunks =
      in_chunks(call.problem.query, sizes.dim_qk) && in_chunks(call.problem.key, sizes.dim_qk) &&
      in_chunks(call.problem.value, sizes.dim_v) && in_chunks(call.grad_output, sizes.dim_v) &&
      in_chunks(call.grad_query, sizes.dim_qk) && in_chunks(call.grad_key, sizes.dim_qk) &&
      in_chunks(call.grad_value, sizes.dim_v);
  const bool plain = call.problem.mask.data == nullptr && params.in_chunks &&
                     params.scale_log2 > 0x1p-100F && params.scale_log2 < 0x1p100F;
  int index = 0;
  const std::int64_t dim = core::max64(sizes.dim_qk, sizes.dim_v);
  while (index < kTiles && kQueryGradientTiles[index].dim < dim) ++index;
  visit_index<kTiles>(index, [&](auto constant) {
    if (plain) {
      start_backward<E, constant, false>(params, launcher);
    } else {
      start_backward<E, constant, true>(params, launcher);
    }
  });
  return index < kTiles;
}

}  // namespace fused_attention::cuda
