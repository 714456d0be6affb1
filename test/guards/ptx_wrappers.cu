// Pairs of kernels that do one thing: through our wrappers (own_*), and through those of CUTLASS or
// of CUDA's headers (other_*). test_ptx_wrappers.py compares what they are compiled to.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cutlass/arch/memory_sm80.h>

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/mma_sm80.hpp>

#include "cuda/arch/device.h"

#define KERNEL(name) extern "C" __global__ void name

namespace fused_attention::cuda {
namespace {

__device__ SharedPtr own_row() {
  return shared_region(0, 0, "") + static_cast<int>(threadIdx.x * 16);
}
template <class T>
__device__ T& other_row() {
  return *reinterpret_cast<T*>(dynamic_shared_memory + threadIdx.x * 16);
}

}  // namespace

KERNEL(own_ldmatrix_x4)(uint4* to) {
  Fragment x;
  ldmatrix_x4(x, own_row());
  to[threadIdx.x] = make_uint4(x[0], x[1], x[2], x[3]);
}
KERNEL(other_ldmatrix_x4)(uint4* to) {
  uint4 x;
  cute::SM75_U32x4_LDSM_N::copy(other_row<const cute::uint128_t>(), x.x, x.y, x.z, x.w);
  to[threadIdx.x] = x;
}

KERNEL(own_ldmatrix_x4_trans)(uint4* to) {
  Fragment x;
  ldmatrix_x4_trans(x, own_row());
  to[threadIdx.x] = make_uint4(x[0], x[1], x[2], x[3]);
}
KERNEL(other_ldmatrix_x4_trans)(uint4* to) {
  uint4 x;
  cute::SM75_U16x8_LDSM_T::copy(other_row<const cute::uint128_t>(), x.x, x.y, x.z, x.w);
  to[threadIdx.x] = x;
}

template <class E>
__device__ void own_mma(float4* d, const uint4* a, const uint2* b) {
  const uint4 x = a[threadIdx.x];
  const uint2 y = b[threadIdx.x];
  const float4 z = d[threadIdx.x];
  const Fragment rows = {x.x, x.y, x.z, x.w};
  float sums[4] = {z.x, z.y, z.z, z.w};
  mma_m16n8k16<E>(sums, rows, y.x, y.y);
  d[threadIdx.x] = make_float4(sums[0], sums[1], sums[2], sums[3]);
}
template <class Atom>
__device__ void other_mma(float4* d, const uint4* a, const uint2* b) {
  const uint4 x = a[threadIdx.x];
  const uint2 y = b[threadIdx.x];
  float4 z = d[threadIdx.x];
  Atom::fma(z.x, z.y, z.z, z.w, x.x, x.y, x.z, x.w, y.x, y.y, z.x, z.y, z.z, z.w);
  d[threadIdx.x] = z;
}
KERNEL(own_mma_bfloat16)(float4* d, const uint4* a, const uint2* b) { own_mma<BFloat16>(d, a, b); }
KERNEL(other_mma_bfloat16)(float4* d, const uint4* a, const uint2* b) {
  other_mma<cute::SM80_16x8x16_F32BF16BF16F32_TN>(d, a, b);
}
KERNEL(own_mma_float16)(float4* d, const uint4* a, const uint2* b) { own_mma<Float16>(d, a, b); }
KERNEL(other_mma_float16)(float4* d, const uint4* a, const uint2* b) {
  other_mma<cute::SM80_16x8x16_F32F16F16F32_TN>(d, a, b);
}

KERNEL(own_rounded_product)(float* to, const float3* from) {
  const float3 x = from[threadIdx.x];
  to[threadIdx.x] = rounded_product(x.x, x.y) - x.z;
}
KERNEL(other_rounded_product)(float* to, const float3* from) {
  const float3 x = from[threadIdx.x];
  to[threadIdx.x] = __fsub_rn(__fmul_rn(x.x, x.y), x.z);
}

KERNEL(own_cp_async_16)(const uint4* from, unsigned count) {
  cp_async_16(own_row(), GlobalPtr<const uint4>(from) + threadIdx.x, threadIdx.x < count ? 16 : 0);
}
KERNEL(other_cp_async_16)(const uint4* from, unsigned count) {
  cutlass::arch::cp_async_zfill<16, cutlass::arch::CacheOperation::Global>(
      &other_row<uint4>(), from + threadIdx.x, threadIdx.x < count);
}

KERNEL(own_cp_async_wait_for_all_but_one)() {
  cp_async_commit();
  cp_async_commit();
  cp_async_wait<1>();
}
KERNEL(other_cp_async_wait_for_all_but_one)() {
  cute::cp_async_fence();
  cute::cp_async_fence();
  cute::cp_async_wait<1>();
}

KERNEL(own_cp_async_wait_for_all)() {
  cp_async_commit();
  cp_async_wait<0>();
}
/// CuTe waits for what is in no group yet, too: a commit is part of it.
KERNEL(other_cp_async_wait_for_all)() { cute::cp_async_wait<0>(); }

KERNEL(own_pack2_bfloat16)(const float2* from, std::uint32_t* to) {
  to[threadIdx.x] = pack2<BFloat16>(from[threadIdx.x].x, from[threadIdx.x].y);
}
KERNEL(other_pack2_bfloat16)(const float2* from, std::uint32_t* to) {
  to[threadIdx.x] =
      bit_cast<std::uint32_t>(__floats2bfloat162_rn(from[threadIdx.x].x, from[threadIdx.x].y));
}
KERNEL(own_pack2_float16)(const float2* from, std::uint32_t* to) {
  to[threadIdx.x] = pack2<Float16>(from[threadIdx.x].x, from[threadIdx.x].y);
}
KERNEL(other_pack2_float16)(const float2* from, std::uint32_t* to) {
  to[threadIdx.x] =
      bit_cast<std::uint32_t>(__floats2half2_rn(from[threadIdx.x].x, from[threadIdx.x].y));
}

KERNEL(own_from_float_bfloat16)(const float* from, unsigned short* to) {
  to[threadIdx.x] = from_float<BFloat16>(from[threadIdx.x]).bits;
}
KERNEL(other_from_float_bfloat16)(const float* from, unsigned short* to) {
  to[threadIdx.x] = __bfloat16_as_ushort(__float2bfloat16_rn(from[threadIdx.x]));
}
KERNEL(own_from_float_float16)(const float* from, unsigned short* to) {
  to[threadIdx.x] = from_float<Float16>(from[threadIdx.x]).bits;
}
KERNEL(other_from_float_float16)(const float* from, unsigned short* to) {
  to[threadIdx.x] = __half_as_ushort(__float2half_rn(from[threadIdx.x]));
}

KERNEL(own_to_float_float16)(const unsigned short* from, float* to) {
  to[threadIdx.x] = to_float(Float16{from[threadIdx.x]});
}
KERNEL(other_to_float_float16)(const unsigned short* from, float* to) {
  to[threadIdx.x] = __half2float(__ushort_as_half(from[threadIdx.x]));
}

KERNEL(own_exp2_approx)(const float* from, float* to) {
  to[threadIdx.x] = exp2_approx(from[threadIdx.x]);
}
/// The bare instruction, because this file is compiled with -ftz=true.
KERNEL(other_exp2_approx)(const float* from, float* to) {
  to[threadIdx.x] = exp2f(from[threadIdx.x]);
}

#define ACCESS_KERNELS(bytes, Type)                                                              \
  KERNEL(own_load_global_##bytes)(const Type* from, Type* to) {                                  \
    to[threadIdx.x] = load_global<Type>(GlobalPtr<const Type>(from) + threadIdx.x);              \
  }                                                                                              \
  KERNEL(other_load_global_##bytes)(const Type* from, Type* to) {                                \
    to[threadIdx.x] = __ldg(from + threadIdx.x);                                                 \
  }                                                                                              \
  KERNEL(own_store_global_##bytes)(Type x, Type * to) {                                          \
    store_global(GlobalPtr<Type>(to) + threadIdx.x, x);                                          \
  }                                                                                              \
  KERNEL(other_store_global_##bytes)(Type x, Type * to) { to[threadIdx.x] = x; }                 \
  KERNEL(own_load_shared_##bytes)(Type * to) { to[threadIdx.x] = load_shared<Type>(own_row()); } \
  KERNEL(other_load_shared_##bytes)(Type * to) { to[threadIdx.x] = other_row<Type>(); }          \
  KERNEL(own_store_shared_##bytes)(Type x) { store_shared(own_row(), x); }                       \
  KERNEL(other_store_shared_##bytes)(Type x) { other_row<Type>() = x; }
ACCESS_KERNELS(4, unsigned)
ACCESS_KERNELS(8, uint2)
ACCESS_KERNELS(16, uint4)

// Shared memory is not accessed in less than words.
KERNEL(own_load_global_2)(const unsigned short* from, unsigned short* to) {
  to[threadIdx.x] =
      load_global<unsigned short>(GlobalPtr<const unsigned short>(from) + threadIdx.x);
}
KERNEL(other_load_global_2)(const unsigned short* from, unsigned short* to) {
  to[threadIdx.x] = __ldg(from + threadIdx.x);
}
KERNEL(own_store_global_2)(unsigned short x, unsigned short* to) {
  store_global(GlobalPtr<unsigned short>(to) + threadIdx.x, x);
}
KERNEL(other_store_global_2)(unsigned short x, unsigned short* to) { to[threadIdx.x] = x; }
KERNEL(own_load_global_1)(const unsigned char* from, unsigned char* to) {
  to[threadIdx.x] = load_global<unsigned char>(GlobalPtr<const unsigned char>(from) + threadIdx.x);
}
KERNEL(other_load_global_1)(const unsigned char* from, unsigned char* to) {
  to[threadIdx.x] = __ldg(from + threadIdx.x);
}

}  // namespace fused_attention::cuda
