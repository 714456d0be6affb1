// Stands in for torch's header of this name (see ATen/Parallel.h beside it): plain aligned memory, so
// that the sanitizers see every buffer's bounds.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace c10 {

using DataPtr = std::unique_ptr<void, decltype(&std::free)>;

struct Allocator {
  DataPtr allocate(std::size_t bytes) {
    if (bytes == 0) return DataPtr(nullptr, &std::free);
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == nullptr) throw std::bad_alloc();
    return DataPtr(memory, &std::free);
  }
};

inline Allocator* GetCPUAllocator() {
  static Allocator allocator;
  return &allocator;
}

}  // namespace c10
