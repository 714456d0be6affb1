// Lists the CUDA kernels with what the host knows about each, one JSON object a line. The launch
// code itself names them: it is asked for every dtype, head dim and kind of problem, and its
// launcher only writes down what it would start, with much shared memory and with little. Needs no
// CUDA.
#include <cxxabi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <typeinfo>

#include "cuda/backward_launch.h"

namespace fused_attention::cuda {
namespace {

template <class T>
std::string name_of() {
  char* const demangled = abi::__cxa_demangle(typeid(T).name(), nullptr, nullptr, nullptr);
  std::string name = demangled;
  std::free(demangled);
  return name;
}

/// Numbers of a kernel's tile, as far as it has them.
template <class C>
std::string tile_numbers() {
  std::string text;
  const auto add = [&](const char* name, int number) {
    text.append(", \"").append(name).append("\": ").append(std::to_string(number));
  };
  constexpr auto tile = C::kTile;
  add("rows", tile.rows);
  if constexpr (requires { tile.keys; }) add("keys", tile.keys);
  if constexpr (requires { tile.stages; }) add("stages", tile.stages);
  if constexpr (requires { tile.dim; }) add("dim_qk", tile.dim);
  if constexpr (requires { tile.dim; }) add("dim_v", tile.dim);
  if constexpr (requires { tile.dim_qk; }) add("dim_qk", tile.dim_qk);
  if constexpr (requires { tile.dim_v; }) add("dim_v", tile.dim_v);
  if constexpr (requires { tile.columns; }) add("columns", tile.columns);
  if constexpr (requires { C::kGeneral; }) add("general", C::kGeneral);
  if constexpr (requires { C::kWantsKey; }) add("wants_key", C::kWantsKey);
  if constexpr (requires { C::kWantsValue; }) add("wants_value", C::kWantsValue);
  return text;
}

struct ListingLauncher {
  std::set<std::string>& seen;
  int shared_bytes;

  int most_shared_bytes() const { return shared_bytes; }

  template <class C>
  void operator()(const Launch& launch, const typename C::Params& /*params*/) const {
    const std::string name = name_of<C>();
    if (!seen.insert(name).second) return;
    std::printf(
        "{\"name\": \"%s\", \"threads\": %d, \"shared_bytes\": %d, \"blocks_per_sm\": %d%s}\n",
        name.c_str(), launch.threads, launch.shared_bytes, C::kTile.blocks_per_sm,
        tile_numbers<C>().c_str());
  }
};

/// Any address that is not null: nothing is read.
void* const kSomewhere = reinterpret_cast<void*>(4096);

template <class Operand>
Operand contiguous(std::int64_t heads, std::int64_t seq, std::int64_t dim) {
  return {kSomewhere, heads * seq * dim, seq * dim, dim, 1};
}

template <class T>
void list_kernels_of(core::DType dtype, const core::Sizes& s, bool has_mask,
                     const ListingLauncher& launcher) {
  core::Problem problem;
  problem.sizes = s;
  problem.dtype = dtype;
  problem.band = core::make_band(true, 0, -1, -1, s.seq_q, s.seq_k);
  problem.query = contiguous<core::ConstOperand>(s.heads_q, s.seq_q, s.dim_qk);
  problem.key = contiguous<core::ConstOperand>(s.heads_kv, s.seq_k, s.dim_qk);
  problem.value = contiguous<core::ConstOperand>(s.heads_kv, s.seq_k, s.dim_v);
  if (has_mask) problem.mask = {.data = kSomewhere};
  // A mask brings the kernels that are told of chunks, the last one merges them.
  const KeySplit split{.chunks = has_mask ? 2 : 1, .partials = kSomewhere};
  core::ForwardProblem forward;
  forward.problem = problem;
  forward.output = contiguous<core::Operand>(s.heads_q, s.seq_q, s.dim_v);
  core::BackwardProblem backward;
  backward.problem = problem;
  backward.grad_output = contiguous<core::ConstOperand>(s.heads_q, s.seq_q, s.dim_v);
  backward.grad_query = contiguous<core::Operand>(s.heads_q, s.seq_q, s.dim_qk);
  backward.grad_key = contiguous<core::Operand>(s.heads_kv, s.seq_k, s.dim_qk);
  backward.grad_value = contiguous<core::Operand>(s.heads_kv, s.seq_k, s.dim_v);
  if constexpr (sizeof(T) == 2) {
    forward_half<T>(forward, split, launcher);
    backward_half<T>(backward, nullptr, launcher);
  } else {
    forward_exact<T>(forward, split, launcher);
    backward_exact<T>(backward, nullptr, launcher);
  }
}

}  // namespace

void list_kernels() {
  std::set<std::string> seen;
  for (const int shared_bytes : {163 << 10, kLeastSharedBytes}) {
    const ListingLauncher launcher{seen, shared_bytes};
    for (const std::int64_t dim : {64, 96, 128, 192, 256, 576}) {
      for (const std::int64_t dim_v : {dim, dim * 2 / 3}) {  // 192 / 128 has a kernel of its own
        for (const bool has_mask : {false, true}) {
          const core::Sizes sizes{1, 4, 2, 4096, 4096, dim, dim_v};
          list_kernels_of<BFloat16>(core::DType::kBFloat16, sizes, has_mask, launcher);
          list_kernels_of<Float16>(core::DType::kFloat16, sizes, has_mask, launcher);
          list_kernels_of<float>(core::DType::kFloat32, sizes, has_mask, launcher);
          list_kernels_of<double>(core::DType::kFloat64, sizes, has_mask, launcher);
        }
      }
    }
  }
}

}  // namespace fused_attention::cuda

int main() { fused_attention::cuda::list_kernels(); }
