// The seam on a GPU: one instruction, one wrapper. See device.h for what each promises.
// PTX ISA 7.0 and newer, sm_80 and newer.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "types.h"

#define FUSED_ATTENTION_DEVICE __device__ __forceinline__
#define FUSED_ATTENTION_UNROLL _Pragma("unroll")
#define FUSED_ATTENTION_NO_UNROLL _Pragma("unroll 1")

namespace fused_attention::cuda {

template <class T>
class GlobalPtr {
 public:
  GlobalPtr() = default;
  FUSED_ATTENTION_DEVICE explicit GlobalPtr(T* address) : address_(address) {}
  template <class U, class = std::enable_if_t<std::is_same_v<T, const U>>>
  FUSED_ATTENTION_DEVICE GlobalPtr(GlobalPtr<U> other) : address_(other.address_) {}

  FUSED_ATTENTION_DEVICE friend GlobalPtr operator+(GlobalPtr p, std::int64_t elements) {
    p.address_ += elements;
    return p;
  }
  FUSED_ATTENTION_DEVICE explicit operator bool() const { return address_ != nullptr; }

 private:
  template <class>
  friend class GlobalPtr;
  friend struct Address;
  T* address_ = nullptr;
};

class SharedPtr {
 public:
  FUSED_ATTENTION_DEVICE friend SharedPtr operator+(SharedPtr p, int bytes) {
    p.address_ += static_cast<std::uint32_t>(bytes);
    return p;
  }
  FUSED_ATTENTION_DEVICE friend SharedPtr operator^(SharedPtr p, int bits) {
    p.address_ ^= static_cast<std::uint32_t>(bits);
    return p;
  }

 private:
  friend struct Address;
  std::uint32_t address_;
};

/// What the pointers hold, for the wrappers below.
struct Address {
  template <class T>
  FUSED_ATTENTION_DEVICE static T* of(GlobalPtr<T> p) {
    return p.address_;
  }
  FUSED_ATTENTION_DEVICE static std::uint32_t of(SharedPtr p) { return p.address_; }
  FUSED_ATTENTION_DEVICE static SharedPtr shared(std::uint32_t address) {
    SharedPtr p;
    p.address_ = address;
    return p;
  }
};

extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];

FUSED_ATTENTION_DEVICE SharedPtr shared_region(int offset, int /*bytes*/, const char* /*name*/) {
  const auto base = static_cast<std::uint32_t>(__cvta_generic_to_shared(dynamic_shared_memory));
  return Address::shared(base + static_cast<std::uint32_t>(offset));
}

FUSED_ATTENTION_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
FUSED_ATTENTION_DEVICE std::int64_t block_index_x() { return blockIdx.x; }
FUSED_ATTENTION_DEVICE std::int64_t block_index_y() { return blockIdx.y; }
FUSED_ATTENTION_DEVICE std::int64_t grid_size_x() { return gridDim.x; }

FUSED_ATTENTION_DEVICE void block_sync() { __syncthreads(); }
FUSED_ATTENTION_DEVICE bool block_any(bool condition) { return __syncthreads_or(condition) != 0; }
FUSED_ATTENTION_DEVICE void warp_sync() { __syncwarp(); }
FUSED_ATTENTION_DEVICE bool warp_any(bool condition) {
  return __any_sync(0xFFFFFFFFU, condition) != 0;
}

template <class T>
FUSED_ATTENTION_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFU, value, mask);
}

FUSED_ATTENTION_DEVICE void ldmatrix_x4(Fragment& to, SharedPtr row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(Address::of(row)));
}

FUSED_ATTENTION_DEVICE void ldmatrix_x4_trans(Fragment& to, SharedPtr row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(Address::of(row)));
}

template <class E>
FUSED_ATTENTION_DEVICE void mma_m16n8k16(float (&d)[4], const Fragment& a, std::uint32_t b0,
                                         std::uint32_t b1) {
  if constexpr (std::is_same_v<E, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<E, Float16>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

template <class T>
FUSED_ATTENTION_DEVICE void cp_async_16(SharedPtr to, GlobalPtr<const T> from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(Address::of(to)),
               "l"(Address::of(from)), "r"(bytes));
}
FUSED_ATTENTION_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;"); }
template <int N>
FUSED_ATTENTION_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

template <class To, class From>
FUSED_ATTENTION_DEVICE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

template <class V, class T>
FUSED_ATTENTION_DEVICE V load_global(GlobalPtr<const T> pointer) {
  const T* from = Address::of(pointer);
  if constexpr (sizeof(V) == 1) {
    std::uint16_t x;
    asm volatile("ld.global.nc.u8 %0, [%1];" : "=h"(x) : "l"(from));
    return bit_cast<V>(static_cast<std::uint8_t>(x));
  } else if constexpr (sizeof(V) == 2) {
    std::uint16_t x;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(x) : "l"(from));
    return bit_cast<V>(x);
  } else if constexpr (sizeof(V) == 4) {
    std::uint32_t x;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(x) : "l"(from));
    return bit_cast<V>(x);
  } else if constexpr (sizeof(V) == 8) {
    Words2 x;
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];"
                 : "=r"(x.value[0]), "=r"(x.value[1])
                 : "l"(from));
    return bit_cast<V>(x);
  } else {
    static_assert(sizeof(V) == 16);
    Words4 x;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.value[0]), "=r"(x.value[1]), "=r"(x.value[2]), "=r"(x.value[3])
                 : "l"(from));
    return bit_cast<V>(x);
  }
}

template <class V, class T>
FUSED_ATTENTION_DEVICE void store_global(GlobalPtr<T> pointer, const V& value) {
  T* to = Address::of(pointer);
  if constexpr (sizeof(V) == 2) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(bit_cast<std::uint16_t>(value)));
  } else if constexpr (sizeof(V) == 4) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(bit_cast<std::uint32_t>(value)));
  } else if constexpr (sizeof(V) == 8) {
    const auto x = bit_cast<Words2>(value);
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(x.value[0]), "r"(x.value[1]));
  } else {
    static_assert(sizeof(V) == 16);
    const auto x = bit_cast<Words4>(value);
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.value[0]),
                 "r"(x.value[1]), "r"(x.value[2]), "r"(x.value[3]));
  }
}

template <class V>
FUSED_ATTENTION_DEVICE V load_shared(SharedPtr from) {
  if constexpr (sizeof(V) == 4) {
    std::uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(Address::of(from)));
    return bit_cast<V>(x);
  } else if constexpr (sizeof(V) == 8) {
    Words2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(x.value[0]), "=r"(x.value[1])
                 : "r"(Address::of(from)));
    return bit_cast<V>(x);
  } else {
    static_assert(sizeof(V) == 16);
    Words4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.value[0]), "=r"(x.value[1]), "=r"(x.value[2]), "=r"(x.value[3])
                 : "r"(Address::of(from)));
    return bit_cast<V>(x);
  }
}

template <class V>
FUSED_ATTENTION_DEVICE void store_shared(SharedPtr to, const V& value) {
  if constexpr (sizeof(V) == 4) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(Address::of(to)),
                 "r"(bit_cast<std::uint32_t>(value)));
  } else if constexpr (sizeof(V) == 8) {
    const auto x = bit_cast<Words2>(value);
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(Address::of(to)), "r"(x.value[0]),
                 "r"(x.value[1]));
  } else {
    static_assert(sizeof(V) == 16);
    const auto x = bit_cast<Words4>(value);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(Address::of(to)), "r"(x.value[0]),
                 "r"(x.value[1]), "r"(x.value[2]), "r"(x.value[3]));
  }
}

FUSED_ATTENTION_DEVICE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
FUSED_ATTENTION_DEVICE std::int64_t opaque(std::int64_t x) {
  asm volatile("" : "+l"(x));
  return x;
}

FUSED_ATTENTION_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FUSED_ATTENTION_DEVICE float exponential(float x) { return ::expf(x); }
FUSED_ATTENTION_DEVICE double exponential(double x) { return ::exp(x); }
FUSED_ATTENTION_DEVICE float logarithm(float x) { return ::logf(x); }
FUSED_ATTENTION_DEVICE double logarithm(double x) { return ::log(x); }
FUSED_ATTENTION_DEVICE float fused_multiply_add(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
FUSED_ATTENTION_DEVICE double fused_multiply_add(double a, double b, double c) {
  return __fma_rn(a, b, c);
}
FUSED_ATTENTION_DEVICE float rounded_product(float a, float b) { return __fmul_rn(a, b); }
FUSED_ATTENTION_DEVICE double rounded_product(double a, double b) { return __dmul_rn(a, b); }
FUSED_ATTENTION_DEVICE float maximum(float a, float b) { return ::fmaxf(a, b); }
FUSED_ATTENTION_DEVICE double maximum(double a, double b) { return ::fmax(a, b); }

FUSED_ATTENTION_DEVICE float to_float(BFloat16 x) {
  return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16);
}
FUSED_ATTENTION_DEVICE float to_float(Float16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

template <class E>
FUSED_ATTENTION_DEVICE E from_float(float x) {
  E y;
  if constexpr (std::is_same_v<E, BFloat16>) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  } else {
    static_assert(std::is_same_v<E, Float16>);
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  }
  return y;
}

template <class E>
FUSED_ATTENTION_DEVICE std::uint32_t pack2(float low, float high) {
  std::uint32_t word;
  if constexpr (std::is_same_v<E, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    static_assert(std::is_same_v<E, Float16>);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

template <class E>
FUSED_ATTENTION_DEVICE void unpack2(std::uint32_t word, float& low, float& high) {
  low = to_float(E{static_cast<std::uint16_t>(word)});
  high = to_float(E{static_cast<std::uint16_t>(word >> 16)});
}

}  // namespace fused_attention::cuda
