// What avx512_bf16's dot products of pairs reach when nothing else is asked of them: the ceiling of
// the products of bf16 on that ISA, and beside the FMA peak the reason why not every CPU uses it.
#pragma once

#include "fma_peak.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace fused_attention::bench {

inline bool has_bf16_dot() { return __builtin_cpu_supports("avx512bf16"); }

/// Independent sums, as fma_chunk has them; returns the FLOPs done: 32 multiply-adds each.
FUSED_ATTENTION_TARGET("avx512f,avx512bf16")
inline double bf16_dot_chunk(float* sink) {
  __m512 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh a = _mm512_cvtne2ps_pbh(sums[1], sums[1]);
  const __m512bh b = _mm512_cvtne2ps_pbh(sums[2], sums[2]);
  for (std::int64_t turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], a, b);
  }
  __m512 total = sums[0];
  for (int i = 1; i < kSums; ++i) total = _mm512_add_ps(total, sums[i]);
  *sink = _mm512_cvtss_f32(total);
  return 2.0 * kSums * kTurns * 32;
}

}  // namespace fused_attention::bench
#else
namespace fused_attention::bench {
inline bool has_bf16_dot() { return false; }
inline double bf16_dot_chunk(float*) { return 0; }
}  // namespace fused_attention::bench
#endif

namespace fused_attention::bench {

/// The FLOPs per second of this thread in dot products of pairs (has_bf16_dot), as fma_rate.
template <class Clock>
double bf16_dot_rate(double seconds, const Clock& now) {
  return chunk_rate([](float* sink) { return bf16_dot_chunk(sink); }, seconds, now);
}

}  // namespace fused_attention::bench
