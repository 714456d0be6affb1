// What the FMA units reach when nothing else is asked of them: the ceiling that every share of the
// benchmarks refers to. Torch-free; the vectors are the compiler's, so every CPU can be probed.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#define FUSED_ATTENTION_TARGET(isa) [[gnu::target(isa)]]
#else
#define FUSED_ATTENTION_TARGET(isa)
#endif

namespace fused_attention::bench {

template <class T, int bytes>
struct Vector {
  typedef T Type [[gnu::vector_size(bytes)]];
};

// Two FMA units of latency 4 need 8 independent sums; 12 and two constants fit 16 registers.
constexpr int kSums = 12;
constexpr std::int64_t kTurns = 4096;

/// Multiply-adds for about 10 microseconds; returns the FLOPs done. x <- a x + b with |a| < 1
/// neither overflows nor becomes denormal.
template <int bytes>
[[gnu::always_inline]] inline double fma_chunk(const volatile float* factors, float* sink) {
  using V = typename Vector<float, bytes>::Type;
  const V a = V{} + factors[0];
  const V b = V{} + factors[1];
  V sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = V{} + static_cast<float>(i);
  for (std::int64_t turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sums[i] = sums[i] * a + b;
  }
  V total{};
  for (int i = 0; i < kSums; ++i) total += sums[i];
  *sink = total[0];
  return 2.0 * kSums * kTurns * (bytes / sizeof(float));
}

inline double fma_chunk_16(const volatile float* factors, float* sink) {
  return fma_chunk<16>(factors, sink);
}
FUSED_ATTENTION_TARGET("avx2,fma")
inline double fma_chunk_32(const volatile float* factors, float* sink) {
  return fma_chunk<32>(factors, sink);
}
FUSED_ATTENTION_TARGET("avx512f,fma")
inline double fma_chunk_64(const volatile float* factors, float* sink) {
  return fma_chunk<64>(factors, sink);
}

/// The bytes of the widest vector that this CPU runs, up to 64.
inline int widest_vector_bytes() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return 64;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 32;
#endif
  return 16;
}

template <class Function>
Function* choose_by_width(int bytes, Function* narrow, Function* middle, Function* wide) {
  return bytes >= 64 ? wide : bytes >= 32 ? middle : narrow;
}

/// The FLOPs per second of this thread in calls of chunk(sink), which returns those of one call,
/// over `seconds` of the clock that `now` reads in seconds.
template <class Chunk, class Clock>
double chunk_rate(const Chunk& chunk, double seconds, const Clock& now) {
  volatile float keep = 0;
  double flops = 0;
  const double start = now();
  double elapsed = 0;
  while (elapsed < seconds) {
    float sink = 0;
    flops += chunk(&sink);
    keep = sink;
    elapsed = now() - start;
  }
  static_cast<void>(keep);
  return flops / elapsed;
}

/// That of fp32 multiply-adds with vectors of `bytes` bytes (at most widest_vector_bytes).
template <class Clock>
double fma_rate(int bytes, double seconds, const Clock& now) {
  const auto chunk = choose_by_width(bytes, fma_chunk_16, fma_chunk_32, fma_chunk_64);
  const volatile float factors[2] = {0.75f, 0.125f};
  return chunk_rate([&](float* sink) { return chunk(factors, sink); }, seconds, now);
}

}  // namespace fused_attention::bench
