// The stream that kernels are launched on, asked of a device interface that stands where torch_cuda
// would register its own.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <atomic>

#include "cuda/current_stream.h"

namespace fused_attention {
namespace {

using c10::DeviceType;

/// Devices with a current stream each, which is not the default one.
struct TwoDevices : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, device, 100 + device.index());
  }
  void* getStreamNativeHandle(c10::Stream stream) const override {
    return handles + 10 * stream.device_index() + (stream.id() - 100);
  }
  mutable char handles[20] = {};
};

std::atomic<const c10::impl::DeviceGuardImplInterface*>& registered() {
  return c10::impl::device_guard_impl_registry[static_cast<std::size_t>(DeviceType::CUDA)];
}

TEST(CurrentStreamTest, IsTheHandleOfTheDevicesCurrentStream) {
  static const TwoDevices devices;
  const auto* const before = registered().exchange(&devices);
  CUstream_st* const first = cuda::current_stream({DeviceType::CUDA, 0});
  CUstream_st* const second = cuda::current_stream({DeviceType::CUDA, 1});
  registered() = before;
  EXPECT_EQ(static_cast<void*>(first), devices.handles);
  EXPECT_EQ(static_cast<void*>(second), devices.handles + 11);
}

TEST(CurrentStreamTest, WithoutCudaInTorchIsAnError) {
  if (registered() != nullptr)
    GTEST_SKIP() << "a CUDA build of torch that is loaded answers instead";
  EXPECT_THROW(cuda::current_stream({DeviceType::CUDA, 0}), c10::Error);
}

}  // namespace
}  // namespace fused_attention
