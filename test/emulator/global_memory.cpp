#include "global_memory.h"

#include <stdexcept>
#include <utility>

namespace fused_attention::emulator {

void GlobalMemory::add_allocation(std::string name, const void* base, std::size_t bytes) {
  allocations_.push_back({std::move(name), reinterpret_cast<std::uintptr_t>(base),
                          std::vector<std::uint8_t>(bytes, 0)});
}

GlobalMemory::Allocation* GlobalMemory::find(std::uintptr_t address, std::size_t bytes) {
  for (Allocation& a : allocations_) {
    if (address >= a.begin && address + bytes <= a.begin + a.state.size()) return &a;
  }
  return nullptr;
}

void GlobalMemory::allow(const void* address, std::size_t bytes, Access access) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  Allocation* allocation = find(at, bytes);
  if (allocation == nullptr) throw std::logic_error("allowed memory is in no allocation");
  for (std::size_t n = 0; n < bytes; ++n) {
    allocation->state[at - allocation->begin + n] |= static_cast<std::uint8_t>(access);
  }
}

void GlobalMemory::allow_tensor(const void* base, std::size_t element,
                                const std::vector<std::int64_t>& sizes,
                                const std::vector<std::int64_t>& strides, Access access) {
  std::vector<std::int64_t> index(sizes.size(), 0);
  for (const std::int64_t size : sizes) {
    if (size == 0) return;
  }
  while (true) {
    std::int64_t offset = 0;
    for (std::size_t dim = 0; dim < sizes.size(); ++dim) offset += index[dim] * strides[dim];
    allow(static_cast<const char*>(base) + offset * static_cast<std::int64_t>(element), element,
          access);
    std::size_t dim = sizes.size();
    while (dim > 0 && ++index[dim - 1] == sizes[dim - 1]) index[--dim] = 0;
    if (dim == 0) return;
  }
}

void GlobalMemory::begin_launch() {
  for (Allocation& a : allocations_) {
    for (std::uint8_t& byte : a.state) byte &= static_cast<std::uint8_t>(~(kWasRead | kWasWritten));
  }
}

bool GlobalMemory::check(Recorder& recorder, std::uintptr_t address, std::size_t bytes,
                         Access access, SiteId site) {
  if (address % bytes != 0) {
    recorder.record(Fault::kMisaligned, site, [&] {
      return std::to_string(bytes) + " bytes of global memory at an address that is " +
             std::to_string(address % bytes) + " past a multiple";
    });
    return false;
  }
  Allocation* allocation = find(address, bytes);
  if (allocation == nullptr) {
    recorder.record(Fault::kGlobalRange, site, [&] {
      std::string text = std::to_string(bytes) + " bytes in no allocation";
      for (const Allocation& a : allocations_) {
        const std::uintptr_t end = a.begin + a.state.size();
        if (address >= end && address - end < 4096) {
          text += ", " + std::to_string(address - end) + " past the end of " + a.name;
        } else if (address < a.begin && a.begin - address < 4096) {
          text += ", " + std::to_string(a.begin - address) + " before " + a.name;
        }
      }
      return text;
    });
    return false;
  }
  std::uint8_t* state = allocation->state.data() + (address - allocation->begin);
  bool good = true;
  for (std::size_t n = 0; n < bytes; ++n) {
    if ((state[n] & static_cast<std::uint8_t>(access)) == 0) good = false;
  }
  if (!good) {
    recorder.record(Fault::kGlobalRange, site, [&] {
      return std::string(access == Access::kRead ? "read" : "write") + " of " +
             std::to_string(bytes) + " bytes of " + allocation->name + " at byte " +
             std::to_string(address - allocation->begin) + ", which holds no such element";
    });
    return false;
  }
  // Blocks run one after the other here, and in any order on a GPU: what one leaves another may
  // neither read nor write, and what one has read nobody may write.
  const bool reads = access == Access::kRead;
  std::uint8_t before = 0;
  for (std::size_t n = 0; n < bytes; ++n) {
    before |= state[n];
    state[n] |= reads ? kWasRead : kWasWritten;
  }
  if ((before & kWasWritten) != 0 || (!reads && (before & kWasRead) != 0)) {
    recorder.record(Fault::kGlobalRace, site, [&] {
      return std::string(reads ? "read" : "write") + " of byte " +
             std::to_string(address - allocation->begin) + " of " + allocation->name +
             ", which was " + ((before & kWasWritten) != 0 ? "written" : "read") +
             " in the same launch";
    });
  }
  return true;
}

}  // namespace fused_attention::emulator
