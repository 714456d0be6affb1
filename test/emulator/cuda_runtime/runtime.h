// What stands behind cuda_runtime_api.h: devices that record what they are asked for, and refuse
// what a GPU would refuse.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fused_attention::test {

/// A kernel was started, or its limit of shared memory set.
struct KernelEvent {
  bool is_launch;
  std::string kernel;  // its C++ name
  int device;
  int shared_bytes;
  dim3 grid, block;
  cudaStream_t stream;
};

class CudaRuntime {
 public:
  static CudaRuntime& instance();

  // Every device has them.
  int multiprocessors = 108;
  int most_shared_bytes = 163 << 10;
  int devices = 2;
  int first_device = 0;  // -1 where the CPU's tensors stand for a GPU's
  int device = 0;        // the current one
  /// What the next launch fails with.
  cudaError_t launch_error = cudaSuccess;
  std::vector<KernelEvent> events;
  /// Runs a kernel: `body` for each thread of all blocks. Nothing does if it is empty.
  std::function<void(const KernelEvent& launch, const KernelParams& params,
                     const std::function<void()>& body)>
      run;

  std::vector<KernelEvent> launches() const;

  cudaError_t fail(cudaError_t error) {
    if (error != cudaSuccess) last_error_ = error;
    return error;
  }
  cudaError_t take_last_error() { return std::exchange(last_error_, cudaSuccess); }
  cudaError_t set_shared_bytes(const void* kernel, int bytes);
  void start(const void* kernel, KernelEvent launch, const KernelParams& params,
             const std::function<void()>& body);

 private:
  cudaError_t refusal(const void* kernel, const KernelEvent& launch) const;

  cudaError_t last_error_ = cudaSuccess;
  std::map<std::pair<int, const void*>, int> shared_bytes_;  // by device and kernel
};

}  // namespace fused_attention::test
