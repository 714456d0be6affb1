// From a backward problem to launches. Torch-free; see forward_launch.h.
#pragma once

#include "forward_launch.h"
#include "kernels/backward_exact_key.h"
#include "kernels/backward_key.h"

namespace fused_attention::cuda {

static_assert(sizeof(RowStatistics) == kStatisticsNumbers * sizeof(float));
static_assert(kQueryGradientTiles[std::size(kQueryGradientTiles) - 1].dim == kLargestHeadDim);
static_assert(std::size(kQueryGradientTiles) == std::size(kKeyGradientTiles));

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

template <class E, BackwardTile kTile, bool kGeneral>
struct HalfKeyGradients {
  static constexpr bool kInOneLaunch = kTile.columns <= 128;
  template <KeyGradients kWhich>
  using With = KeyGradientConfig<E, kTile, kWhich, kGeneral>;
};

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
  int index = 0;
  const std::int64_t dim = core::max64(sizes.dim_qk, sizes.dim_v);
  while (index < kTiles && kQueryGradientTiles[index].dim < dim) ++index;
  visit_index<kTiles>(index, [&](auto constant) {
    const auto start = [&](auto is_general) {
      constexpr BackwardTile kQueryTile = kQueryGradientTiles[constant];
      constexpr BackwardTile kKeyTile = kKeyGradientTiles[constant];
      start_query_gradient<QueryGradientConfig<E, kQueryTile, is_general>>(params, launcher);
      start_key_gradients<HalfKeyGradients<E, kKeyTile, is_general>>(params, launcher);
    };
    if (is_plain(call.problem, params.in_chunks, params.scale_log2)) {
      start(std::false_type());
    } else {
      start(std::true_type());
    }
  });
  return index < kTiles;
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
