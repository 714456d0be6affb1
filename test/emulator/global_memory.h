// Which elements of which host memory a launch may touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "recorder.h"

namespace fused_attention::emulator {

enum class Access : std::uint8_t { kRead = 1, kWrite = 2 };

/// Memory is made known as allocations. Inside one, only what is allowed element by element may be
/// touched, so that a gap between the rows of a strided tensor is out of range like its end.
class GlobalMemory {
 public:
  void add_allocation(std::string name, const void* base, std::size_t bytes);
  /// Allows `bytes` bytes at `address`, which must lie in an allocation.
  void allow(const void* address, std::size_t bytes, Access access);
  /// Allows all elements of a tensor of `element` bytes each; strides in elements.
  void allow_tensor(const void* base, std::size_t element, const std::vector<std::int64_t>& sizes,
                    const std::vector<std::int64_t>& strides, Access access);

  /// Forgets which bytes were read and written: a new launch begins.
  void begin_launch();
  /// Whether an access of a running kernel is good; records what is not.
  bool check(Recorder& recorder, std::uintptr_t address, std::size_t bytes, Access access,
             SiteId site);

 private:
  static constexpr std::uint8_t kWasRead = 4;
  static constexpr std::uint8_t kWasWritten = 8;
  struct Allocation {
    std::string name;
    std::uintptr_t begin;
    std::vector<std::uint8_t> state;  // of each byte: Access bits and those above
  };
  Allocation* find(std::uintptr_t address, std::size_t bytes);
  std::vector<Allocation> allocations_;
};

}  // namespace fused_attention::emulator
