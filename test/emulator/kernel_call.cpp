#include "emulator/kernel_call.h"

#include "cuda/forward_launch.h"

namespace fused_attention::test {
namespace {

/// Makes the memory of a case known: only the elements of each tensor may be touched.
class CaseMemory {
 public:
  explicit CaseMemory(Call& call) {
    add("query", call.q, emulator::Access::kRead);
    add("key", call.k, emulator::Access::kRead);
    add("value", call.v, emulator::Access::kRead);
    add("output", call.out, emulator::Access::kWrite);
    if (call.mask) add("mask", *call.mask, emulator::Access::kRead);
    memory.add_allocation("logsumexp", call.lse.data(), call.lse.size());
    memory.allow(call.lse.data(), call.lse.size(), emulator::Access::kWrite);
  }
  void add(const char* name, const Tensor& tensor, emulator::Access access) {
    memory.add_allocation(name, tensor.memory.data(), tensor.memory.size());
    memory.allow_tensor(tensor.memory.data(), element_size(tensor.dtype),
                        {tensor.shape, tensor.shape + 4}, {tensor.stride, tensor.stride + 4},
                        access);
  }
  emulator::GlobalMemory memory;
};

/// Starts kernels in the emulator.
struct EmulatorLauncher {
  emulator::GlobalMemory& memory;
  emulator::Report& report;
  std::uint64_t seed = 0;

  template <class C>
  void operator()(const cuda::Launch& launch, const cuda::ForwardParams& params) const {
    report.merge(emulator::Machine().run(
        {.grid_x = launch.grid_x,
         .grid_y = launch.grid_y,
         .threads = launch.threads,
         .shared_bytes = launch.shared_bytes},
        memory, [&] { C::run(params); }, seed));
  }
};

}  // namespace

emulator::Report run_forward(Call& call, std::uint64_t seed) {
  CaseMemory memory(call);
  emulator::Report report;
  const EmulatorLauncher launcher{memory.memory, report, seed};
  bool found = true;
  switch (call.forward.problem.dtype) {
    case DType::kBFloat16:
      found = cuda::forward_half<cuda::BFloat16>(call.forward, launcher);
      break;
    case DType::kFloat16:
      found = cuda::forward_half<cuda::Float16>(call.forward, launcher);
      break;
    case DType::kFloat32:
      cuda::forward_exact<float>(call.forward, launcher);
      break;
    default:
      cuda::forward_exact<double>(call.forward, launcher);
  }
  EXPECT_TRUE(found) << "no kernel for this head dim";
  return report;
}

}  // namespace fused_attention::test
