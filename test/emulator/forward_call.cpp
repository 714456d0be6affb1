#include <cmath>
#include <vector>

#include "cuda/forward_launch.h"
#include "emulator/case_memory.h"

namespace fused_attention::test {

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

}  // namespace fused_attention::test
