// Ceilings of the machine for bench_attention.py, which calls them through ctypes: what the FMA
// units reach, and how fast memory is read. Torch-free; the vectors are GCC's, so every CPU can be
// probed.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "bf16_dot.h"
#include "fma_peak.h"

#define PROBE extern "C" [[gnu::visibility("default")]]

namespace {

using fused_attention::bench::Vector;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Runs body(i) on `count` threads that start together, and returns when all are done.
void run_together(int count, const std::function<void(int)>& body) {
  std::atomic<int> ready{0};
  const auto start = [&](int index) {
    ready.fetch_add(1);
    while (ready.load() < count) {
    }
    body(index);
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < count; ++i) threads.emplace_back(start, i);
  start(0);
  for (auto& thread : threads) thread.join();
}

// The sum of what `count` threads reach, in units of 1e9.
double total_rate(int count, const std::function<double()>& rate) {
  std::vector<double> rates(count);
  run_together(count, [&](int index) { rates[index] = rate(); });
  double total = 0;
  for (const double one : rates) total += one;
  return total * 1e-9;
}

template <int bytes>
[[gnu::always_inline]] inline std::uint64_t read_range(const std::byte* begin,
                                                       const std::byte* end) {
  using V = typename Vector<std::uint64_t, bytes>::Type;
  constexpr int kStreams = 8;
  V sums[kStreams] = {};
  const std::byte* at = begin;
  for (; at + kStreams * bytes <= end; at += kStreams * bytes) {
#pragma GCC unroll 8
    for (int i = 0; i < kStreams; ++i) {
      V loaded;
      __builtin_memcpy(&loaded, at + i * bytes, bytes);
      sums[i] += loaded;
    }
  }
  V total{};
  for (int i = 0; i < kStreams; ++i) total += sums[i];
  std::uint64_t sum = total[0] + total[bytes / sizeof(std::uint64_t) - 1];
  for (; at < end; ++at) sum += static_cast<std::uint64_t>(*at);
  return sum;
}

std::uint64_t read_range_16(const std::byte* begin, const std::byte* end) {
  return read_range<16>(begin, end);
}
FUSED_ATTENTION_TARGET("avx2")
std::uint64_t read_range_32(const std::byte* begin, const std::byte* end) {
  return read_range<32>(begin, end);
}
FUSED_ATTENTION_TARGET("avx512f")
std::uint64_t read_range_64(const std::byte* begin, const std::byte* end) {
  return read_range<64>(begin, end);
}

}  // namespace

/// Returns the bytes of the widest vector that this CPU runs, up to 64.
PROBE int probe_vector_bytes() { return fused_attention::bench::widest_vector_bytes(); }

/// Returns the fp32 GFLOP/s of `threads` threads that do nothing but multiply-add vectors of
/// `bytes` bytes (at most probe_vector_bytes) for `seconds`.
PROBE double probe_fma_gflops(int bytes, int threads, double seconds) {
  return total_rate(threads, [=] {
    const auto start = Clock::now();
    return fused_attention::bench::fma_rate(bytes, seconds, [&] { return seconds_since(start); });
  });
}

/// The same of dot products of bf16 pairs; 0 on a CPU without avx512_bf16.
PROBE double probe_bf16_dot_gflops(int threads, double seconds) {
  if (!fused_attention::bench::has_bf16_dot()) return 0;
  return total_rate(threads, [=] {
    const auto start = Clock::now();
    return fused_attention::bench::bf16_dot_rate(seconds, [&] { return seconds_since(start); });
  });
}

/// Returns the GB/s at which `threads` threads read `size` bytes at `data` once, in vectors of
/// `bytes` bytes.
PROBE double probe_read_gbps(const void* data, std::int64_t size, int bytes, int threads) {
  const auto read =
      fused_attention::bench::choose_by_width(bytes, read_range_16, read_range_32, read_range_64);
  const auto* begin = static_cast<const std::byte*>(data);
  std::vector<double> elapsed(threads);
  std::atomic<std::uint64_t> sink{0};
  run_together(threads, [&](int index) {
    const auto start = Clock::now();
    sink += read(begin + size * index / threads, begin + size * (index + 1) / threads);
    elapsed[index] = seconds_since(start);
  });
  return static_cast<double>(size) / *std::max_element(elapsed.begin(), elapsed.end()) * 1e-9;
}
