// The functions of csrc/cuda/run.h that .cu files implement, in the emulator.
#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/backward_launch.h"
#include "cuda/run.h"
#include "emulator/machine.h"

namespace fused_attention::cuda {
namespace {

using emulator::Access;

std::size_t element_size(core::DType dtype) {
  switch (dtype) {
    case core::DType::kFloat64:
      return 8;
    case core::DType::kFloat32:
      return 4;
    case core::DType::kBool:
      return 1;
    default:
      return 2;
  }
}

/// Makes the tensors of a call known, and nothing else: kernels may touch only their elements.
/// Tensors may be views of one memory.
class CallMemory {
 public:
  explicit CallMemory(const core::Problem& problem) : problem_(problem) {}

  template <class Operand>
  void add(const char* name, const Operand& x, std::int64_t heads, std::int64_t seq,
           std::int64_t dim, Access access) {
    add_tensor(name, x.data, element_size(problem_.dtype), {problem_.sizes.batch, heads, seq, dim},
               {x.stride_b, x.stride_h, x.stride_s, x.stride_d}, access);
  }
  void add_inputs() {
    const core::Sizes& s = problem_.sizes;
    add("query", problem_.query, s.heads_q, s.seq_q, s.dim_qk, Access::kRead);
    add("key", problem_.key, s.heads_kv, s.seq_k, s.dim_qk, Access::kRead);
    add("value", problem_.value, s.heads_kv, s.seq_k, s.dim_v, Access::kRead);
    const core::DenseMask& mask = problem_.mask;
    add_tensor("mask", mask.data, element_size(mask.dtype), {s.batch, s.heads_q, s.seq_q, s.seq_k},
               {mask.stride_b, mask.stride_h, mask.stride_q, mask.stride_k}, Access::kRead);
  }
  /// `numbers` of the type of LSE for each row.
  void add_rows(const char* name, const void* data, std::int64_t numbers, Access access) {
    const core::Sizes& s = problem_.sizes;
    const std::size_t element = problem_.dtype == core::DType::kFloat64 ? 8 : 4;
    add_tensor(name, data, element, {s.batch * s.heads_q * s.seq_q * numbers}, {1}, access);
  }

  emulator::GlobalMemory known() {
    std::sort(tensors_.begin(), tensors_.end(),
              [](const Tensor& a, const Tensor& b) { return a.data < b.data; });
    emulator::GlobalMemory memory;
    for (std::size_t first = 0; first < tensors_.size();) {
      std::string name = tensors_[first].name;
      const char* end = tensors_[first].end();
      std::size_t next = first + 1;
      for (; next < tensors_.size() && tensors_[next].data < end; ++next) {
        name.append(" and ").append(tensors_[next].name);
        end = std::max(end, tensors_[next].end());
      }
      memory.add_allocation(name, tensors_[first].data,
                            static_cast<std::size_t>(end - tensors_[first].data));
      first = next;
    }
    for (const Tensor& x : tensors_) {
      memory.allow_tensor(x.data, x.element, x.sizes, x.strides, x.access);
    }
    return memory;
  }

 private:
  struct Tensor {
    std::string name;
    const char* data;
    std::size_t element;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    Access access;

    const char* end() const {
      std::int64_t last = 0;
      for (std::size_t n = 0; n < sizes.size(); ++n) last += (sizes[n] - 1) * strides[n];
      return data + (last + 1) * static_cast<std::int64_t>(element);
    }
  };

  void add_tensor(const char* name, const void* data, std::size_t element,
                  std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides,
                  Access access) {
    const bool is_empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
    if (data == nullptr || is_empty) return;
    tensors_.push_back({name, static_cast<const char*>(data), element, std::move(sizes),
                        std::move(strides), access});
  }

  const core::Problem& problem_;
  std::vector<Tensor> tensors_;
};

struct EmulatorLauncher {
  mutable emulator::GlobalMemory memory;  // launchers are taken by const reference

  /// Problems that an emulator can run never fill the first dimension of a grid, so it is made
  /// short, and some blocks at the end have nothing to do.
  static constexpr std::int64_t kMostX = 7;

  /// Of a GPU with little shared memory if the environment says so.
  static int most_shared_bytes() {
    const char* bytes = std::getenv("FUSED_ATTENTION_EMULATED_SHARED_BYTES");
    return bytes == nullptr ? 163 << 10 : std::stoi(bytes);
  }

  template <class C>
  void operator()(const Launch& launch, const typename C::Params& params) const {
    if (launch.shared_bytes > most_shared_bytes()) {
      throw std::runtime_error("a kernel takes more shared memory than the device has");
    }
    const std::int64_t blocks = launch.grid_x * launch.grid_y;
    const std::int64_t grid_x = core::min64(blocks, kMostX);
    const emulator::Report report =
        emulator::Machine().run({.grid_x = grid_x,
                                 .grid_y = core::ceil_div(blocks, grid_x),
                                 .threads = launch.threads,
                                 .shared_bytes = launch.shared_bytes},
                                memory, [&] { C::run(params); });
    if (!report.clean()) throw std::runtime_error(report.text());
  }
};

EmulatorLauncher forward_launcher(const core::ForwardProblem& call, const KeySplit& split) {
  const core::Sizes& s = call.problem.sizes;
  CallMemory memory(call.problem);
  memory.add_inputs();
  memory.add("output", call.output, s.heads_q, s.seq_q, s.dim_v, Access::kWrite);
  memory.add_rows("logsumexp", call.logsumexp, 1, Access::kWrite);
  // What one kernel leaves for the next.
  const std::int64_t partials = split.chunks == 1 ? 0 : split.chunks * (2 + s.dim_v);
  memory.add_rows("partials", split.partials, partials, Access::kWrite);
  memory.add_rows("partials", split.partials, partials, Access::kRead);
  return {memory.known()};
}

EmulatorLauncher backward_launcher(const core::BackwardProblem& call, void* statistics) {
  const core::Sizes& s = call.problem.sizes;
  CallMemory memory(call.problem);
  memory.add_inputs();
  memory.add("output", call.output, s.heads_q, s.seq_q, s.dim_v, Access::kRead);
  memory.add("grad_output", call.grad_output, s.heads_q, s.seq_q, s.dim_v, Access::kRead);
  memory.add_rows("logsumexp", call.logsumexp, 1, Access::kRead);
  memory.add_rows("grad_logsumexp", call.grad_logsumexp, 1, Access::kRead);
  memory.add_rows("statistics", statistics, kStatisticsNumbers, Access::kRead);
  memory.add_rows("statistics", statistics, kStatisticsNumbers, Access::kWrite);
  memory.add("grad_query", call.grad_query, s.heads_q, s.seq_q, s.dim_qk, Access::kWrite);
  memory.add("grad_key", call.grad_key, s.heads_kv, s.seq_k, s.dim_qk, Access::kWrite);
  memory.add("grad_value", call.grad_value, s.heads_kv, s.seq_k, s.dim_v, Access::kWrite);
  return {memory.known()};
}

}  // namespace

/// So many that few rows share their keys between blocks.
int multiprocessors(int /*device*/) { return 20; }

bool forward_bfloat16(const core::ForwardProblem& call, const KeySplit& split,
                      CUstream_st* /*stream*/) {
  return forward_half<BFloat16>(call, split, forward_launcher(call, split));
}
bool forward_float16(const core::ForwardProblem& call, const KeySplit& split,
                     CUstream_st* /*stream*/) {
  return forward_half<Float16>(call, split, forward_launcher(call, split));
}
void forward_float32(const core::ForwardProblem& call, const KeySplit& split,
                     CUstream_st* /*stream*/) {
  forward_exact<float>(call, split, forward_launcher(call, split));
}
void forward_float64(const core::ForwardProblem& call, const KeySplit& split,
                     CUstream_st* /*stream*/) {
  forward_exact<double>(call, split, forward_launcher(call, split));
}

bool backward_bfloat16(const core::BackwardProblem& call, void* statistics,
                       CUstream_st* /*stream*/) {
  return backward_half<BFloat16>(call, statistics, backward_launcher(call, statistics));
}
bool backward_float16(const core::BackwardProblem& call, void* statistics,
                      CUstream_st* /*stream*/) {
  return backward_half<Float16>(call, statistics, backward_launcher(call, statistics));
}
void backward_float32(const core::BackwardProblem& call, void* statistics,
                      CUstream_st* /*stream*/) {
  backward_exact<float>(call, statistics, backward_launcher(call, statistics));
}
void backward_float64(const core::BackwardProblem& call, void* statistics,
                      CUstream_st* /*stream*/) {
  backward_exact<double>(call, statistics, backward_launcher(call, statistics));
}

}  // namespace fused_attention::cuda
