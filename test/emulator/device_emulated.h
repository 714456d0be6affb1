// The seam in the emulator: see csrc/cuda/arch/device.h for what each function promises. Each ends
// with the place of its call, which reports name.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <source_location>
#include <type_traits>

#include "cuda/arch/types.h"
#include "emulator/collectives.h"
#include "emulator/half.h"
#include "emulator/machine.h"

#define FUSED_ATTENTION_DEVICE inline
#define FUSED_ATTENTION_UNROLL
#define FUSED_ATTENTION_NO_UNROLL

namespace fused_attention::cuda {

using Where = std::source_location;

template <class T>
class GlobalPtr {
 public:
  GlobalPtr() = default;
  explicit GlobalPtr(T* address) : address_(reinterpret_cast<std::uintptr_t>(address)) {}
  template <class U, class = std::enable_if_t<std::is_same_v<T, const U>>>
  GlobalPtr(GlobalPtr<U> other) : address_(other.address_) {}

  // Integers, because a pointer past its array is undefined before it is ever used.
  friend GlobalPtr operator+(GlobalPtr p, std::int64_t elements) {
    p.address_ += static_cast<std::uintptr_t>(elements) * sizeof(T);
    return p;
  }
  explicit operator bool() const { return address_ != 0; }

 private:
  template <class>
  friend class GlobalPtr;
  friend struct Address;
  std::uintptr_t address_ = 0;
};

class SharedPtr {
 public:
  friend SharedPtr operator+(SharedPtr p, int bytes) {
    p.address_.offset += static_cast<std::uint32_t>(bytes);
    return p;
  }
  friend SharedPtr operator^(SharedPtr p, int bits) {
    p.address_.offset ^= static_cast<std::uint32_t>(bits);
    return p;
  }

 private:
  friend struct Address;
  emulator::SharedAddress address_;
};

struct Address {
  template <class T>
  static std::uintptr_t of(GlobalPtr<T> p) {
    return p.address_;
  }
  static emulator::SharedAddress of(SharedPtr p) { return p.address_; }
  static SharedPtr shared(emulator::SharedAddress address) {
    SharedPtr p;
    p.address_ = address;
    return p;
  }
};

inline emulator::Machine& machine() { return emulator::Machine::current(); }
inline emulator::SiteId site_of(const Where& where) { return machine().id_of(where); }

inline SharedPtr shared_region(int offset, int bytes, const char* name,
                               Where where = Where::current()) {
  const std::uint16_t region = machine().region(offset, bytes, name, site_of(where));
  return Address::shared({static_cast<std::uint32_t>(offset), region});
}

inline int thread_index() { return machine().thread(); }
inline std::int64_t block_index_x() { return machine().block_x(); }
inline std::int64_t block_index_y() { return machine().block_y(); }
inline std::int64_t grid_size_x() { return machine().shape().grid_x; }

inline void block_sync(Where where = Where::current()) {
  machine().meet_block("block_sync", false, site_of(where));
}
inline bool block_any(bool condition, Where where = Where::current()) {
  return machine().meet_block("block_any", condition, site_of(where));
}
inline void warp_sync(Where where = Where::current()) {
  machine().meet_warp(emulator::kWarpSync, nullptr, site_of(where));
}
inline bool warp_any(bool condition, Where where = Where::current()) {
  emulator::AnyOperand operand{condition, false};
  machine().meet_warp(emulator::kWarpAny, &operand, site_of(where));
  return operand.result;
}

template <class T>
T shuffle_xor(T value, int mask, Where where = Where::current()) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  emulator::ShuffleOperand operand{0, mask, 0};
  std::memcpy(&operand.value, &value, sizeof value);
  machine().meet_warp(emulator::kShuffleXor, &operand, site_of(where));
  std::memcpy(&value, &operand.result, sizeof value);
  return value;
}

inline void ldmatrix_x4(Fragment& to, SharedPtr row, Where where = Where::current()) {
  emulator::LdmatrixOperand operand{to, Address::of(row), site_of(where)};
  machine().meet_warp(emulator::kLdmatrix, &operand, operand.site);
}
inline void ldmatrix_x4_trans(Fragment& to, SharedPtr row, Where where = Where::current()) {
  emulator::LdmatrixOperand operand{to, Address::of(row), site_of(where)};
  machine().meet_warp(emulator::kLdmatrixTrans, &operand, operand.site);
}

template <class E>
void mma_m16n8k16(float (&d)[4], const Fragment& a, std::uint32_t b0, std::uint32_t b1,
                  Where where = Where::current()) {
  emulator::MmaOperand operand{d, a, {b0, b1}};
  machine().meet_warp(emulator::kMma<E>, &operand, site_of(where));
}

template <class T>
void cp_async_16(SharedPtr to, GlobalPtr<const T> from, int bytes, Where where = Where::current()) {
  machine().copy_async(Address::of(to), Address::of(from), bytes, site_of(where));
}
inline void cp_async_commit() { machine().commit_copies(); }
template <int N>
void cp_async_wait(Where where = Where::current()) {
  machine().wait_copies(N, site_of(where));
}

template <class V, class T>
V load_global(GlobalPtr<const T> from, Where where = Where::current()) {
  static_assert(std::has_single_bit(sizeof(V)) && sizeof(V) <= 16);
  V value;
  machine().load_global(&value, Address::of(from), sizeof(V), site_of(where));
  return value;
}
template <class V, class T>
void store_global(GlobalPtr<T> to, const V& value, Where where = Where::current()) {
  static_assert(std::has_single_bit(sizeof(V)) && sizeof(V) >= 2 && sizeof(V) <= 16);
  machine().store_global(Address::of(to), &value, sizeof(V), site_of(where));
}
template <class V>
V load_shared(SharedPtr from, Where where = Where::current()) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  V value;
  machine().load_shared(&value, Address::of(from), sizeof(V), site_of(where));
  return value;
}
template <class V>
void store_shared(SharedPtr to, const V& value, Where where = Where::current()) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  machine().store_shared(Address::of(to), &value, sizeof(V), site_of(where));
}

template <class To, class From>
To bit_cast(const From& from) {
  return std::bit_cast<To>(from);
}

inline int opaque(int x) { return x; }
inline std::int64_t opaque(std::int64_t x) { return x; }

/// A result that would be denormal is 0, as with ex2.approx.ftz.
inline float exp2_approx(float x) {
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.0F : y;
}
inline float exponential(float x) { return std::exp(x); }
inline double exponential(double x) { return std::exp(x); }
inline float logarithm(float x) { return std::log(x); }
inline double logarithm(double x) { return std::log(x); }
inline float fused_multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
inline double fused_multiply_add(double a, double b, double c) { return std::fma(a, b, c); }
/// Stored, so that the compiler, which contracts here as nvcc does, cannot.
template <class T>
T rounded_product(T a, T b) {
  const volatile T product = a * b;
  return product;
}
inline float maximum(float a, float b) { return std::fmax(a, b); }
inline double maximum(double a, double b) { return std::fmax(a, b); }

inline float to_float(BFloat16 x) { return emulator::value_of(x); }
inline float to_float(Float16 x) { return emulator::value_of(x); }
template <class E>
E from_float(float x) {
  return emulator::nearest<E>(x);
}
template <class E>
std::uint32_t pack2(float low, float high) {
  return emulator::nearest<E>(low).bits |
         static_cast<std::uint32_t>(emulator::nearest<E>(high).bits) << 16;
}
template <class E>
void unpack2(std::uint32_t word, float& low, float& high) {
  low = to_float(E{static_cast<std::uint16_t>(word)});
  high = to_float(E{static_cast<std::uint16_t>(word >> 16)});
}

}  // namespace fused_attention::cuda
