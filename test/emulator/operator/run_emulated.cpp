// Runs what the .cu files launch in the emulator.
#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/params.h"
#include "cuda/launch.h"
#include "emulator/cuda_runtime/runtime.h"
#include "emulator/machine.h"
#include "emulator/operator/stream.h"

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
    Tensor x{name,  static_cast<const char*>(data), element, std::move(sizes), std::move(strides),
             access};
    // Every byte of an allocation takes one here, also those in a gap between the elements.
    constexpr std::int64_t kMostBytes = std::int64_t{1} << 28;
    if (x.end() - x.data <= kMostBytes) {
      tensors_.push_back(std::move(x));
      return;
    }
    const auto widest = std::max_element(x.strides.begin(), x.strides.end()) - x.strides.begin();
    const auto dim = static_cast<std::size_t>(widest);
    const std::int64_t step = x.strides[dim] * static_cast<std::int64_t>(element);
    for (std::int64_t n = std::exchange(x.sizes[dim], 1) - 1; n >= 0; --n) {
      std::vector<std::int64_t> part = x.strides;
      part[dim] = 0;
      add_tensor(name, x.data + n * step, element, x.sizes, std::move(part), access);
    }
  }

  const core::Problem& problem_;
  std::vector<Tensor> tensors_;
};

emulator::GlobalMemory memory_of(const ForwardParams& params) {
  const core::ForwardProblem& call = params.call;
  const core::Sizes& s = call.problem.sizes;
  CallMemory memory(call.problem);
  memory.add_inputs();
  memory.add("output", call.output, s.heads_q, s.seq_q, s.dim_v, Access::kWrite);
  memory.add_rows("logsumexp", call.logsumexp, 1, Access::kWrite);
  // What one kernel leaves for the next.
  const std::int64_t partials = params.chunks == 1 ? 0 : params.chunks * (2 + s.dim_v);
  memory.add_rows("partials", params.partials, partials, Access::kWrite);
  memory.add_rows("partials", params.partials, partials, Access::kRead);
  return memory.known();
}

emulator::GlobalMemory memory_of(const BackwardParams& params) {
  const core::BackwardProblem& call = params.call;
  const core::Sizes& s = call.problem.sizes;
  CallMemory memory(call.problem);
  memory.add_inputs();
  memory.add("output", call.output, s.heads_q, s.seq_q, s.dim_v, Access::kRead);
  memory.add("grad_output", call.grad_output, s.heads_q, s.seq_q, s.dim_v, Access::kRead);
  memory.add_rows("logsumexp", call.logsumexp, 1, Access::kRead);
  memory.add_rows("grad_logsumexp", call.grad_logsumexp, 1, Access::kRead);
  memory.add_rows("statistics", params.statistics, kStatisticsNumbers, Access::kRead);
  memory.add_rows("statistics", params.statistics, kStatisticsNumbers, Access::kWrite);
  memory.add("grad_query", call.grad_query, s.heads_q, s.seq_q, s.dim_qk, Access::kWrite);
  memory.add("grad_key", call.grad_key, s.heads_kv, s.seq_k, s.dim_qk, Access::kWrite);
  memory.add("grad_value", call.grad_value, s.heads_kv, s.seq_k, s.dim_v, Access::kWrite);
  return memory.known();
}

emulator::GlobalMemory memory_of(const test::KernelParams& params) {
  if (params.type == typeid(ForwardParams)) {
    return memory_of(*static_cast<const ForwardParams*>(params.data));
  }
  if (params.type == typeid(BackwardParams)) {
    return memory_of(*static_cast<const BackwardParams*>(params.data));
  }
  throw std::logic_error("a kernel with parameters that the emulator does not know");
}

/// Problems that an emulator can run never fill the first dimension of a grid, so it is made short,
/// and some blocks at the end have nothing to do.
constexpr std::int64_t kMostX = 7;

void run_kernel(const test::KernelEvent& launch, const test::KernelParams& params,
                const std::function<void()>& body) {
  if (launch.stream != emulated_stream()) throw std::logic_error("not the current stream");
  emulator::GlobalMemory memory = memory_of(params);
  const std::int64_t blocks = std::int64_t{launch.grid.x} * launch.grid.y;
  const std::int64_t grid_x = core::min64(blocks, kMostX);
  const emulator::Report report =
      emulator::Machine().run({.grid_x = grid_x,
                               .grid_y = core::ceil_div(blocks, grid_x),
                               .threads = static_cast<int>(launch.block.x),
                               .shared_bytes = launch.shared_bytes},
                              memory, body);
  if (!report.clean()) throw std::runtime_error(report.text());
}

[[maybe_unused]] const bool kIsReady = [] {
  test::CudaRuntime& runtime = test::CudaRuntime::instance();
  runtime.run = run_kernel;
  runtime.first_device = -1;
  runtime.multiprocessors = 20;  // so many that few rows share their keys between blocks
  // A GPU with little shared memory if the environment says so.
  if (const char* bytes = std::getenv("FUSED_ATTENTION_EMULATED_SHARED_BYTES")) {
    runtime.most_shared_bytes = std::stoi(bytes);
  }
  return true;
}();

}  // namespace
}  // namespace fused_attention::cuda
