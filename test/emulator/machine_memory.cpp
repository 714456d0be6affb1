// The machine's memory accesses.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "machine.h"

namespace fused_attention::emulator {

std::uint16_t Machine::region(int offset, int bytes, const char* name, SiteId site) {
  return shared_.region(offset, bytes, name, site);
}

void Machine::note_access(SiteId site, std::uint32_t offset, int bytes) {
  running_->accesses.push_back({site, static_cast<std::uint16_t>(bytes), offset});
}

void Machine::load_shared(void* to, SharedAddress from, int bytes, SiteId site) {
  const unsigned char* at = shared_.locate(from, bytes, site);
  if (at == nullptr) {
    std::memset(to, 0xFF, static_cast<std::size_t>(bytes));
    return;
  }
  shared_.note_read(from.offset, bytes, now(site));
  note_access(site, from.offset, bytes);
  std::memcpy(to, at, static_cast<std::size_t>(bytes));
}

void Machine::store_shared(SharedAddress to, const void* from, int bytes, SiteId site) {
  unsigned char* at = shared_.locate(to, bytes, site);
  if (at == nullptr) return;
  shared_.note_write(to.offset, bytes, now(site));
  note_access(site, to.offset, bytes);
  std::memcpy(at, from, static_cast<std::size_t>(bytes));
}

void Machine::read_matrix_row(unsigned char* to, int lane, SharedAddress from, SiteId site) {
  const unsigned char* at = shared_.locate(from, 16, site);
  if (at == nullptr) {
    std::memset(to, 0xFF, 16);
    return;
  }
  Moment moment = now(site);
  moment.thread = static_cast<std::uint16_t>(moment.thread / kWarpSize * kWarpSize + lane);
  shared_.note_read(from.offset, 16, moment, true);
  std::memcpy(to, at, 16);
}

void Machine::count_matrix(const SharedAddress* rows, SiteId site) {
  std::uint32_t offsets[8];
  for (int row = 0; row < 8; ++row) offsets[row] = rows[row].offset;
  recorder_.count_banks(site, offsets, 8, 16);
}

void Machine::load_global(void* to, std::uintptr_t from, std::size_t bytes, SiteId site) {
  if (memory_->check(recorder_, from, bytes, Access::kRead, site)) {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  } else {
    std::memset(to, 0xFF, bytes);
  }
}

void Machine::store_global(std::uintptr_t to, const void* from, std::size_t bytes, SiteId site) {
  if (memory_->check(recorder_, to, bytes, Access::kWrite, site)) {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  }
}

void Machine::copy_async(SharedAddress to, std::uintptr_t from, int bytes, SiteId site) {
  if (shared_.locate(to, 16, site) == nullptr) return;
  Copy copy{to.offset, {}};
  if (from % 16 != 0) {
    recorder_.record(Fault::kMisaligned, site,
                     [] { return std::string("cp.async of 16 bytes of global memory"); });
  } else if (bytes < 0 || bytes > 16) {
    recorder_.record(Fault::kGlobalRange, site,
                     [&] { return "cp.async of " + std::to_string(bytes) + " of 16 bytes"; });
  } else {
    for (int n = 0; n < bytes; n += 2) {
      unsigned char* element = copy.data.data() + n;
      load_global(element, from + static_cast<std::uintptr_t>(n),
                  static_cast<std::size_t>(std::min(2, bytes - n)), site);
    }
  }
  shared_.begin_copy(to.offset, now(site));
  note_access(site, to.offset, 16);
  running_->open_copies.push_back(copy);
}

void Machine::commit_copies() {
  running_->groups.push_back(std::exchange(running_->open_copies, {}));
}

void Machine::wait_copies(int in_flight, SiteId site) {
  auto& groups = running_->groups;
  const auto keep = std::min(groups.size(), static_cast<std::size_t>(in_flight));
  const auto end = groups.end() - static_cast<std::ptrdiff_t>(keep);
  for (auto group = groups.begin(); group != end; ++group) {
    for (const Copy& copy : *group) shared_.end_copy(copy.offset, copy.data, now(site));
  }
  groups.erase(groups.begin(), end);
}

/// Plain accesses are no rendezvous: the k-th access of each lane at a site counts as one
/// instruction of the warp. It is served in phases of as many lanes as make 128 bytes.
void Machine::count_accesses(Warp& warp) {
  const auto& first = warp.lanes[0]->accesses;
  const auto is_like_first = [&](const Thread* lane) {
    return std::equal(lane->accesses.begin(), lane->accesses.end(), first.begin(), first.end(),
                      [](const PlainAccess& a, const PlainAccess& b) { return a.site == b.site; });
  };
  if (std::all_of(warp.lanes.begin(), warp.lanes.end(), is_like_first)) {
    count_uniform_accesses(warp);
  } else {
    count_divergent_accesses(warp);
  }
  for (Thread* lane : warp.lanes) lane->accesses.clear();
}

/// All lanes made the same accesses: the usual case.
void Machine::count_uniform_accesses(const Warp& warp) {
  const std::size_t count = warp.lanes[0]->accesses.size();
  std::array<std::uint32_t, kWarpSize> offsets;
  for (std::size_t n = 0; n < count; ++n) {
    const PlainAccess& access = warp.lanes[0]->accesses[n];
    const int phase = 128 / std::max<int>(access.bytes, 4);
    for (std::size_t lane = 0; lane < kWarpSize; ++lane) {
      offsets[lane] = warp.lanes[lane]->accesses[n].offset;
    }
    for (int begin = 0; begin < kWarpSize; begin += phase) {
      recorder_.count_banks(access.site, offsets.data() + begin, phase, access.bytes);
    }
  }
}

void Machine::count_divergent_accesses(const Warp& warp) {
  struct Phase {
    int bytes = 0;
    std::vector<std::uint32_t> offsets;
  };
  std::map<std::array<int, 3>, Phase> phases;  // by site, time and phase
  std::map<SiteId, int> times;
  for (std::size_t index = 0; index < kWarpSize; ++index) {
    times.clear();
    for (const PlainAccess& access : warp.lanes[index]->accesses) {
      const int lanes = 128 / std::max<int>(access.bytes, 4);
      Phase& phase = phases[{access.site, times[access.site]++, static_cast<int>(index) / lanes}];
      phase.bytes = access.bytes;
      phase.offsets.push_back(access.offset);
    }
  }
  for (const auto& [key, phase] : phases) {
    recorder_.count_banks(static_cast<SiteId>(key[0]), phase.offsets.data(),
                          static_cast<int>(phase.offsets.size()), phase.bytes);
  }
}

}  // namespace fused_attention::emulator
