#include "emulator/kernel_call.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "cuda/backward_launch.h"
#include "emulator/rounding_bounds.h"

namespace fused_attention::test {
namespace {

/// Makes the memory of a case known: only the elements of each tensor may be touched.
class CaseMemory {
 public:
  void add(const char* name, const Tensor& tensor, emulator::Access access) {
    memory.add_allocation(name, tensor.memory.data(), tensor.memory.size());
    memory.allow_tensor(tensor.data(), element_size(tensor.dtype), {tensor.shape, tensor.shape + 4},
                        {tensor.stride, tensor.stride + 4}, access);
  }
  void add_inputs(const Call& call) {
    add("query", call.q, emulator::Access::kRead);
    add("key", call.k, emulator::Access::kRead);
    add("value", call.v, emulator::Access::kRead);
    if (call.mask) add("mask", *call.mask, emulator::Access::kRead);
  }
  /// A contiguous list.
  void add_list(const char* name, const void* data, std::size_t bytes, emulator::Access access) {
    memory.add_allocation(name, data, bytes);
    memory.allow(data, bytes, access);
  }
  /// What one kernel leaves for the next.
  void add_scratch(const char* name, void* data, std::size_t bytes) {
    add_list(name, data, bytes, emulator::Access::kWrite);
    memory.allow(data, bytes, emulator::Access::kRead);
  }
  emulator::GlobalMemory memory;
};

/// Starts kernels in the emulator.
struct EmulatorLauncher {
  emulator::GlobalMemory& memory;
  emulator::Report& report;
  std::uint64_t seed = 0;
  int shared_bytes = kSharedBytes;

  int most_shared_bytes() const { return shared_bytes; }

  template <class C>
  void operator()(const cuda::Launch& launch, const typename C::Params& params) const {
    ASSERT_LE(launch.shared_bytes, shared_bytes);
    report.merge(emulator::Machine().run(
        {.grid_x = launch.grid_x,
         .grid_y = launch.grid_y,
         .threads = launch.threads,
         .shared_bytes = launch.shared_bytes},
        memory, [&] { C::run(params); }, seed));
  }
};

void expect_close(const char* name, const Tensor& got, const std::vector<Row>& want,
                  const std::vector<Row>& bounds) {
  double worst = 0;  // in units of its bound
  for (std::int64_t b = 0; b < got.shape[0]; ++b) {
    for (std::int64_t h = 0; h < got.shape[1]; ++h) {
      for (std::int64_t s = 0; s < got.shape[2]; ++s) {
        const auto row = static_cast<std::size_t>((b * got.shape[1] + h) * got.shape[2] + s);
        for (std::int64_t d = 0; d < got.shape[3]; ++d) {
          const auto column = static_cast<std::size_t>(d);
          const double error = std::fabs(got.get(b, h, s, d) - want[row][column]);
          const double ratio = error == 0 ? 0 : error / bounds[row][column];
          if (!(ratio <= worst)) worst = ratio;
        }
      }
    }
  }
  EXPECT_LE(worst, 1) << name;
}

}  // namespace

emulator::Report run_forward(Call& call, std::uint64_t seed, int multiprocessors,
                             int shared_bytes) {
  CaseMemory memory;
  memory.add_inputs(call);
  memory.add("output", call.out, emulator::Access::kWrite);
  memory.add_list("logsumexp", call.lse.data(), call.lse.size(), emulator::Access::kWrite);
  const core::Problem& problem = call.forward.problem;
  cuda::KeySplit split;
  split.chunks = cuda::forward_chunks(problem, multiprocessors);
  std::vector<double> partials(
      static_cast<std::size_t>(cuda::partial_numbers(problem.sizes, split.chunks)), std::nan(""));
  split.partials = partials.data();
  memory.add_scratch("partials", split.partials, partials.size() * (call.is_double ? 8 : 4));
  emulator::Report report;
  const EmulatorLauncher launcher{memory.memory, report, seed, shared_bytes};
  bool found = true;
  switch (problem.dtype) {
    case DType::kBFloat16:
      found = cuda::forward_half<cuda::BFloat16>(call.forward, split, launcher);
      break;
    case DType::kFloat16:
      found = cuda::forward_half<cuda::Float16>(call.forward, split, launcher);
      break;
    case DType::kFloat32:
      cuda::forward_exact<float>(call.forward, split, launcher);
      break;
    default:
      cuda::forward_exact<double>(call.forward, split, launcher);
  }
  EXPECT_TRUE(found) << "no kernel for this head dim";
  return report;
}

emulator::Report run_backward(Call& call, std::uint64_t seed, int shared_bytes) {
  const core::Sizes& sizes = call.backward.problem.sizes;
  std::vector<double> statistics(static_cast<std::size_t>(sizes.batch * sizes.heads_q *
                                                          sizes.seq_q * cuda::kStatisticsNumbers));
  // NaN, as doubles and as floats: a row that nobody writes shows in the gradients.
  std::memset(statistics.data(), 0xFF, statistics.size() * sizeof(double));
  CaseMemory memory;
  memory.add_inputs(call);
  memory.add("output", call.out, emulator::Access::kRead);
  memory.add("grad_output", call.grad, emulator::Access::kRead);
  memory.add("grad_query", call.dq, emulator::Access::kWrite);
  memory.add("grad_key", call.dk, emulator::Access::kWrite);
  memory.add("grad_value", call.dv, emulator::Access::kWrite);
  memory.add_list("logsumexp", call.lse.data(), call.lse.size(), emulator::Access::kRead);
  if (call.is_double) {
    memory.add_list("grad_logsumexp", call.grad_lse.data(), call.grad_lse.size() * 8,
                    emulator::Access::kRead);
  } else {
    memory.add_list("grad_logsumexp", call.grad_lse_float.data(), call.grad_lse_float.size() * 4,
                    emulator::Access::kRead);
  }
  memory.add_scratch("statistics", statistics.data(), statistics.size() * (call.is_double ? 8 : 4));
  emulator::Report report;
  const EmulatorLauncher launcher{memory.memory, report, seed, shared_bytes};
  bool found = true;
  switch (call.backward.problem.dtype) {
    case DType::kBFloat16:
      found = cuda::backward_half<cuda::BFloat16>(call.backward, statistics.data(), launcher);
      break;
    case DType::kFloat16:
      found = cuda::backward_half<cuda::Float16>(call.backward, statistics.data(), launcher);
      break;
    case DType::kFloat32:
      cuda::backward_exact<float>(call.backward, statistics.data(), launcher);
      break;
    default:
      cuda::backward_exact<double>(call.backward, statistics.data(), launcher);
  }
  EXPECT_TRUE(found) << "no kernel for these head dims";
  return report;
}

void expect_forward(const Call& call, const Expected& expected) {
  const Bounds bounds = rounding_bounds(call, expected);
  expect_close("output", call.out, expected.output, bounds.output);
  double worst = 0;
  for (std::size_t row = 0; row < bounds.logsumexp.size(); ++row) {
    const double want = expected.logsumexp[row];
    const double got = call.lse_at(row);
    const double ratio = got == want ? 0 : std::fabs(got - want) / bounds.logsumexp[row];
    if (!(ratio <= worst)) worst = ratio;
  }
  EXPECT_LE(worst, 1) << "logsumexp";
}

void expect_backward(const Call& call, const Expected& expected) {
  const Bounds bounds = rounding_bounds(call, expected);
  expect_close("grad_query", call.dq, expected.grad_query, bounds.grad_query);
  expect_close("grad_key", call.dk, expected.grad_key, bounds.grad_key);
  expect_close("grad_value", call.dv, expected.grad_value, bounds.grad_value);
}

}  // namespace fused_attention::test
