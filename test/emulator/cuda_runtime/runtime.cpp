#include "emulator/cuda_runtime/runtime.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <limits>

namespace fused_attention::test {
namespace {

constexpr int kSharedBytesOfEveryLaunch = 48 << 10;

std::string name_of_kernel(const void* kernel) {
  Dl_info info;
  if (dladdr(kernel, &info) == 0 || info.dli_sname == nullptr) return "a kernel without a name";
  int status = 0;
  char* text = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = text == nullptr ? info.dli_sname : text;
  std::free(text);
  return name;
}

}  // namespace

CudaRuntime& CudaRuntime::instance() {
  static CudaRuntime runtime;
  return runtime;
}

std::vector<KernelEvent> CudaRuntime::launches() const {
  std::vector<KernelEvent> list;
  for (const KernelEvent& event : events) {
    if (event.is_launch) list.push_back(event);
  }
  return list;
}

cudaError_t CudaRuntime::set_shared_bytes(const void* kernel, int bytes) {
  events.push_back({false, name_of_kernel(kernel), device, bytes, {}, {}, nullptr});
  if (bytes > most_shared_bytes) return fail(cudaErrorInvalidValue);
  shared_bytes_[{device, kernel}] = bytes;
  return cudaSuccess;
}

cudaError_t CudaRuntime::refusal(const void* kernel, const KernelEvent& launch) const {
  constexpr unsigned kMostX = std::numeric_limits<int>::max();
  const bool fits = launch.grid.x > 0 && launch.grid.x <= kMostX && launch.grid.y > 0 &&
                    launch.grid.y <= 65535 && launch.grid.z == 1 && launch.block.x > 0 &&
                    launch.block.x <= 1024 && launch.block.y == 1 && launch.block.z == 1;
  if (!fits) return cudaErrorInvalidConfiguration;
  const auto found = shared_bytes_.find({device, kernel});
  const int limit = found == shared_bytes_.end() ? 0 : found->second;
  const bool is_allowed =
      launch.shared_bytes <= kSharedBytesOfEveryLaunch || launch.shared_bytes <= limit;
  return is_allowed ? launch_error : cudaErrorInvalidValue;
}

void CudaRuntime::start(const void* kernel, KernelEvent launch, const KernelParams& params,
                        const std::function<void()>& body) {
  launch.kernel = name_of_kernel(kernel);
  launch.device = device;
  if (fail(refusal(kernel, launch)) != cudaSuccess) return;
  events.push_back(launch);
  if (run) run(launch, params, body);
}

cudaError_t set_kernel_attribute(const void* kernel, cudaFuncAttribute /*attribute*/, int value) {
  return CudaRuntime::instance().set_shared_bytes(kernel, value);
}

void start_kernel(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                  cudaStream_t stream, const KernelParams& params,
                  const std::function<void()>& body) {
  CudaRuntime::instance().start(
      kernel, {true, "", 0, static_cast<int>(shared_bytes), grid, block, stream}, params, body);
}

}  // namespace fused_attention::test

using fused_attention::test::CudaRuntime;

cudaError_t cudaGetDevice(int* device) {
  *device = CudaRuntime::instance().device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  CudaRuntime& runtime = CudaRuntime::instance();
  const bool exists = device >= runtime.first_device && device < runtime.devices;
  if (!exists) return runtime.fail(cudaErrorInvalidDevice);
  *value = attribute == cudaDevAttrMultiProcessorCount ? runtime.multiprocessors
                                                       : runtime.most_shared_bytes;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return CudaRuntime::instance().take_last_error(); }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    default:
      return "no error";
  }
}
