// What running a case's kernels in the emulator takes, forward and backward.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/launch.h"
#include "emulator/kernel_call.h"

namespace fused_attention::test {

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

}  // namespace fused_attention::test
