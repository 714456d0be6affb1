#include <cstring>
#include <vector>

#include "cuda/backward_launch.h"
#include "emulator/case_memory.h"

namespace fused_attention::test {

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

}  // namespace fused_attention::test
