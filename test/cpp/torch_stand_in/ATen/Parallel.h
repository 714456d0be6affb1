// Stands in for torch's header of this name, so that the driver and the kernels can be built
// without torch and run under the sanitizers, which need every thread to be one they know.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace at {

inline int& thread_count() {
  static int count = 2;
  return count;
}
inline int get_num_threads() { return thread_count(); }
inline void set_num_threads(int count) { thread_count() = count; }

inline bool& inside_parallel_region() {
  thread_local bool inside = false;
  return inside;
}
inline bool in_parallel_region() { return inside_parallel_region(); }

inline int& thread_number() {
  thread_local int number = 0;
  return number;
}
inline int get_thread_num() { return thread_number(); }

/// As torch's: calls body(begin, end) on disjoint chunks of at least `grain` that cover the range.
template <class Body>
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, const Body& body) {
  if (begin >= end) return;
  const std::int64_t size = end - begin;
  const std::int64_t most = std::max<std::int64_t>(1, size / std::max<std::int64_t>(1, grain));
  const auto count = std::min<std::int64_t>(get_num_threads(), most);
  if (count <= 1 || in_parallel_region()) {
    body(begin, end);
    return;
  }
  const std::int64_t chunk = (size + count - 1) / count;
  std::vector<std::thread> threads;
  for (std::int64_t first = begin; first < end; first += chunk) {
    const int number = static_cast<int>(threads.size());
    threads.emplace_back([&body, number, first, last = std::min(end, first + chunk)] {
      inside_parallel_region() = true;
      thread_number() = number;
      body(first, last);
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace at
