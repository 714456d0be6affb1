// Starts kernels on a CUDA stream.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "forward_launch.h"

namespace fused_attention::cuda {

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kTile.blocks_per_sm)
    attention_kernel(const __grid_constant__ typename C::Params params) {
  C::run(params);
}

/// Shared memory that a block may have on the current device; 0 if the device does not say.
inline int most_shared_bytes() {
  int device = 0;
  int most = 0;
  const bool known =
      cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess;
  return known ? most : 0;
}

/// `shared_bytes`: of the kernel.
inline void check_launch(cudaError_t error, int shared_bytes) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not report it again
  const int most = most_shared_bytes();
  if (most > 0 && shared_bytes > most) {
    throw std::runtime_error(
        "fused_attention::attention: expected a GPU with " + std::to_string(shared_bytes) +
        " bytes of shared memory for a block, which the kernel of these head dims takes, but this "
        "one has " +
        std::to_string(most));
  }
  throw std::runtime_error("fused_attention::attention: launching a CUDA kernel with " +
                           std::to_string(shared_bytes) +
                           " bytes of shared memory failed: " + cudaGetErrorString(error));
}

struct CudaLauncher {
  cudaStream_t stream;

  int most_shared_bytes() const { return cuda::most_shared_bytes(); }

  template <class C>
  void operator()(const Launch& launch, const typename C::Params& params) const {
    const auto kernel = &attention_kernel<C>;
    // More than 48 KB has to be asked for, on each device.
    check_launch(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      launch.shared_bytes),
                 launch.shared_bytes);
    const dim3 grid(static_cast<unsigned>(launch.grid_x), static_cast<unsigned>(launch.grid_y));
    kernel<<<grid, static_cast<unsigned>(launch.threads),
             static_cast<std::size_t>(launch.shared_bytes), stream>>>(params);
    check_launch(cudaGetLastError(), launch.shared_bytes);
  }
};

}  // namespace fused_attention::cuda
