#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "run.h"

namespace fused_attention::cuda {

int multiprocessors(int device) {
  int count = 0;
  const cudaError_t error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) {
    cudaGetLastError();  // so that the next launch does not report it
    throw std::runtime_error(
        std::string("fused_attention::attention: asking for a CUDA device's multiprocessors "
                    "failed: ") +
        cudaGetErrorString(error));
  }
  return count;
}

}  // namespace fused_attention::cuda
