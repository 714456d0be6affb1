// Stands in for torch's header of this name (see ATen/Parallel.h here). Blocks have the size that
// was asked for and torch's alignment, so that AddressSanitizer sees an access one byte too far.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace c10 {

struct FreeAligned {
  void operator()(void* data) const { ::operator delete(data, std::align_val_t{64}); }
};
using DataPtr = std::unique_ptr<void, FreeAligned>;

struct CPUAllocator {
  DataPtr allocate(std::size_t bytes) const {
    return DataPtr(::operator new(bytes, std::align_val_t{64}));
  }
};

inline CPUAllocator* GetCPUAllocator() {
  static CPUAllocator allocator;
  return &allocator;
}

}  // namespace c10
