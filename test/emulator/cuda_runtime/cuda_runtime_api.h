// CUDA's runtime on the host, as far as csrc/cuda calls it, so that the host's half of the .cu
// files runs without a GPU and without CUDA's headers. g++ knows no <<<...>>>: the build writes
// launch_kernel in its place.
#pragma once

#include <cstddef>
#include <functional>
#include <typeinfo>

#define __global__ [[gnu::visibility("default")]]  // so that dladdr finds the kernel's name
#define __launch_bounds__(...)
#define __grid_constant__

struct CUstream_st;
using cudaStream_t = CUstream_st*;

// Values as in CUDA's own header.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t error);

namespace fused_attention::test {

/// Parameters of a kernel, of a type that the kernel knows.
struct KernelParams {
  const void* data;
  const std::type_info& type;
};

cudaError_t set_kernel_attribute(const void* kernel, cudaFuncAttribute attribute, int value);
void start_kernel(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                  cudaStream_t stream, const KernelParams& params,
                  const std::function<void()>& body);

}  // namespace fused_attention::test

template <class Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params), cudaFuncAttribute attribute, int value) {
  return fused_attention::test::set_kernel_attribute(reinterpret_cast<const void*>(kernel),
                                                     attribute, value);
}

/// kernel<<<grid, block, shared_bytes, stream>>>(params).
template <class Params>
void launch_kernel(void (*kernel)(Params), dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream, const Params& params) {
  fused_attention::test::start_kernel(reinterpret_cast<const void*>(kernel), grid, block,
                                      shared_bytes, stream, {&params, typeid(Params)},
                                      [&] { kernel(params); });
}
