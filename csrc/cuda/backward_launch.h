// From a backward problem to launches. Torch-free; see forward_launch.h.
#pragma once

#include <algorithm>

#include "forward_launch.h"
#include "kernels/backward_exact_key.h"
#include "kernels/backward_key.h"

namespace fused_attention::cuda {

static_assert(sizeof(RowStatistics) == kStatisticsNumbers * sizeof(float));
static_assert(kQueryGradientTiles[std::size(kQueryGradientTiles) - 1].dim == kLargestHeadDim);
static_assert(std::size(kQueryGradientTiles) == std::size(kKeyGradientTiles));
static_assert(std::size(kSmallQueryGradientTiles) == std::size(kSmallKeyGradientTiles));

/// The first tile that holds the head dim; -1 if none does.
template <std::size_t n>
constexpr int find_tile(const BackwardTile (&tiles)[n], std::int64_t dim) {
  for (std::size_t index = 0; index < n; ++index) {
    if (dim <= tiles[index].dim) return static_cast<int>(index);
  }
  return -1;
}

/// Starts the kernel C for rows or keys in `items` blocks, and all slices of `dim` columns.
template <class C, class Launcher>
void start_in_slices(BackwardParams params, std::int64_t items, std::int64_t dim,
                     const Launcher& launcher) {
  params.slices = static_cast<int>(core::ceil_div(dim, C::kColumns));
  const std::int64_t blocks = items * params.slices;
  if (blocks == 0) return;
  launcher.template operator()<C>(make_launch(blocks, C::kThreads, C::kSharedBytes), params);
}

/// The kernel of dQ comes first, and always: it prepares the rows.
template <class C, class Launcher>
void start_query_gradient(BackwardParams params, const Launcher& launcher) {
  const core::Sizes& sizes = params.call.problem.sizes;
  params.rows = schedule_blocks(sizes, C::kRows);
  const bool is_wanted = params.call.grad_query.data != nullptr;
  start_in_slices<C>(params, params.rows.heads * params.rows.blocks, is_wanted ? sizes.dim_qk : 1,
                     launcher);
}

template <class C, class Launcher>
void start_key_gradient(BackwardParams params, std::int64_t dim, const Launcher& launcher) {
  const core::Sizes& sizes = params.call.problem.sizes;
  params.rows.heads = sizes.batch * sizes.heads_kv;
  params.key_blocks = core::ceil_div(sizes.seq_k, C::kKeys);
  start_in_slices<C>(params, params.rows.heads * params.key_blocks, dim, launcher);
}

/// Starts the kernels of dK and dV, Config::With<which>: one for both or one for each.
template <class Config, class Launcher>
void start_key_gradients(const BackwardParams& params, const Launcher& launcher) {
  const core::Sizes& sizes = params.call.problem.sizes;
  const bool wants_key = params.call.grad_key.data != nullptr;
  const bool wants_value = params.call.grad_value.data != nullptr;
  if constexpr (Config::kInOneLaunch) {
    if (!wants_key && !wants_value) return;
    start_key_gradient<typename Config::template With<KeyGradients::kBoth>>(params, 1, launcher);
  } else {
    using Key = typename Config::template With<KeyGradients::kKey>;
    using Value = typename Config::template With<KeyGradients::kValue>;
    if (wants_key) start_key_gradient<Key>(params, sizes.dim_qk, launcher);
    if (wants_value) start_key_gradient<Value>(params, sizes.dim_v, launcher);
  }
}

/// The kernels of one problem: the second reads what the first leaves, in the way of `kGeneral`.
template <class E, BackwardTile kQueryTile, BackwardTile kKeyTile, bool kGeneral>
struct HalfGradients {
  static_assert(kQueryTile.dim == kKeyTile.dim);
  static constexpr bool kInOneLaunch = kKeyTile.columns <= 128;
  using Query = QueryGradientConfig<E, kQueryTile, kGeneral>;
  template <KeyGradients kWhich>
  using With = KeyGradientConfig<E, kKeyTile, kWhich, kGeneral>;

  using Largest = With<kInOneLaunch ? KeyGradients::kBoth : KeyGradients::kKey>;
  static constexpr int kSharedBytes = std::max(Query::kSharedBytes, Largest::kSharedBytes);
};

template <class E, int kIndex, bool kGeneral, class Launcher>
void start_half_backward(const BackwardParams& params, const Launcher& launcher) {
  constexpr BackwardTile kTile = kQueryGradientTiles[kIndex];
  constexpr int kSmall = find_tile(kSmallQueryGradientTiles, kTile.dim);
  start_fitting<
      HalfGradients<E, kTile, kKeyGradientTiles[kIndex], kGeneral>,
      HalfGradients<E, kSmallQueryGradientTiles[kSmall], kSmallKeyGradientTiles[kSmall], true>>(
      launcher, [&](auto gradients) {
        using Gradients = decltype(gradients);
        start_query_gradient<typename Gradients::Query>(params, launcher);
        start_key_gradients<Gradients>(params, launcher);
      });
}

inline BackwardParams backward_params(const core::BackwardProblem& call, void* statistics) {
  BackwardParams params;
  params.call = call;
  params.statistics = statistics;
  params.scale = static_cast<float>(call.problem.scale);
  params.scale_log2 = static_cast<float>(call.problem.scale * 1.4426950408889634);
  return params;
}

/// Whether the rows of all operands consist of 16-byte chunks.
inline bool is_in_chunks(const core::BackwardProblem& call, int element_bytes) {
  const auto test = [&](const auto& x, std::int64_t dim) {
    return x.data == nullptr || is_in_chunks(x, dim, element_bytes);
  };
  const core::Problem& problem = call.problem;
  const core::Sizes& sizes = problem.sizes;
  return test(problem.query, sizes.dim_qk) && test(problem.key, sizes.dim_qk) &&
         test(problem.value, sizes.dim_v) && test(call.grad_output, sizes.dim_v) &&
         test(call.grad_query, sizes.dim_qk) && test(call.grad_key, sizes.dim_qk) &&
         test(call.grad_value, sizes.dim_v);
}

/// A problem of 16-bit elements E, with room for the statistics of (B, Hq, Sq) rows. False if no
/// kernel holds D and Dv.
template <class E, class Launcher>
bool backward_half(const core::BackwardProblem& call, void* statistics, const Launcher& launcher) {
  constexpr int kTiles = static_cast<int>(std::size(kQueryGradientTiles));
  const core::Sizes& sizes = call.problem.sizes;
  BackwardParams params = backward_params(call, statistics);
  params.in_chunks = is_in_chunks(call, sizeof(E));
  const int index = find_tile(kQueryGradientTiles, core::max64(sizes.dim_qk, sizes.dim_v));
  visit_index<kTiles>(index, [&](auto constant) {
    if (is_plain(call.problem, params.in_chunks, params.scale_log2)) {
      start_half_backward<E, constant, false>(params, launcher);
    } else {
      start_half_backward<E, constant, true>(params, launcher);
    }
  });
  return index >= 0;
}

template <class T, ExactTile kTile, bool kInOneLaunch_>
struct ExactKeyGradients {
  static constexpr bool kInOneLaunch = kInOneLaunch_;
  template <KeyGradients kWhich>
  using With = ExactKeyGradientConfig<T, kTile, kWhich>;
};

template <class T>
struct ExactBackwardTiles {
  static constexpr const auto& query = kFloatQueryGradientTiles;
  static constexpr const auto& key = kFloatKeyGradientTiles;
};
template <>
struct ExactBackwardTiles<double> {
  static constexpr const auto& query = kDoubleQueryGradientTiles;
  static constexpr const auto& key = kDoubleKeyGradientTiles;
};

/// A problem of fp32 or fp64, of any D and Dv.
template <class T, class Launcher>
void backward_exact(const core::BackwardProblem& call, void* statistics, const Launcher& launcher) {
  using Tiles = ExactBackwardTiles<T>;
  constexpr int kTiles = static_cast<int>(std::size(Tiles::query));
  static_assert(std::size(Tiles::key) == kTiles);
  const core::Sizes& sizes = call.problem.sizes;
  const BackwardParams params = backward_params(call, statistics);
  int index = 0;
  const std::int64_t dim = core::max64(sizes.dim_qk, sizes.dim_v);
  while (index + 1 < kTiles && Tiles::query[index].columns < dim) ++index;
  visit_index<kTiles>(index, [&](auto constant) {
    constexpr bool kIsLast = constant + 1 == kTiles;
    start_query_gradient<ExactQueryGradientConfig<T, Tiles::query[constant]>>(params, launcher);
    start_key_gradients<ExactKeyGradients<T, Tiles::key[constant], !kIsLast>>(params, launcher);
  });
}

}  // namespace fused_attention::cuda
