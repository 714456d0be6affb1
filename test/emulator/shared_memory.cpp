#include "shared_memory.h"

#include <cstring>

namespace fused_attention::emulator {
namespace {

// A NaN as fp32, as either 16-bit type, and in the high half of an fp64.
constexpr unsigned char kPoison = 0xFF;

int warp_of(const Moment& m) { return m.thread / 32; }

}  // namespace

void SharedMemory::begin_block(int bytes) {
  bytes_.assign(static_cast<std::size_t>(bytes), kPoison);
  words_.assign(static_cast<std::size_t>(bytes) / 4, Word());
  regions_.clear();
}

std::uint16_t SharedMemory::region(int offset, int bytes, const char* name, SiteId site) {
  const auto begin = static_cast<std::uint32_t>(offset);
  const auto end = begin + static_cast<std::uint32_t>(bytes);
  for (std::size_t n = 0; n < regions_.size(); ++n) {
    const Region& r = regions_[n];
    if (r.begin == begin && r.end == end && r.name == name) return static_cast<std::uint16_t>(n);
  }
  if (end > bytes_.size()) {
    recorder_.record(Fault::kSharedRange, site, [&] {
      return std::string("region ") + name + " ends at " + std::to_string(end) + " of " +
             std::to_string(bytes_.size()) + " bytes";
    });
  }
  regions_.push_back({begin, end, name});
  return static_cast<std::uint16_t>(regions_.size() - 1);
}

std::string SharedMemory::where(std::uint32_t offset) const {
  std::string text = "byte " + std::to_string(offset);
  for (const Region& r : regions_) {
    if (offset >= r.begin && offset < r.end) text += " (" + r.name + ")";
  }
  return text;
}

unsigned char* SharedMemory::locate(SharedAddress at, int bytes, SiteId site) {
  const Region& region = regions_[at.region];
  const auto end = at.offset + static_cast<std::uint32_t>(bytes);
  if (at.offset % static_cast<std::uint32_t>(bytes) != 0) {
    recorder_.record(Fault::kMisaligned, site, [&] {
      return std::to_string(bytes) + " bytes of shared memory at " + where(at.offset);
    });
    return nullptr;
  }
  if (at.offset < region.begin || end > region.end || end > bytes_.size()) {
    recorder_.record(Fault::kSharedRange, site, [&] {
      return where(at.offset) + " leaves region " + region.name + " [" +
             std::to_string(region.begin) + ", " + std::to_string(region.end) + ")";
    });
    return nullptr;
  }
  return bytes_.data() + at.offset;
}

bool SharedMemory::is_ordered(const Stamp& before, const Moment& now) {
  if (!before.is_set || before.block_epoch != now.block_epoch) return true;
  if (before.many_warps || warp_of(before) != warp_of(now)) return false;
  if (before.warp_epoch != now.warp_epoch) return true;
  return !before.many_threads && before.thread == now.thread;
}

void SharedMemory::report_race(std::uint32_t offset, const char* kind, const Stamp& before,
                               const Moment& now) {
  recorder_.record(Fault::kSharedRace, now.site, [&] {
    return std::string(kind) + " at " + where(offset) + " by thread " + std::to_string(now.thread) +
           ", no barrier since thread " + std::to_string(before.thread) + " at " +
           recorder_.site(before.site).text();
  });
}

void SharedMemory::note_read(std::uint32_t offset, int bytes, const Moment& now, bool by_warp) {
  for (std::uint32_t at = offset; at < offset + static_cast<std::uint32_t>(bytes); at += 4) {
    Word& word = words_[at / 4];
    if (word.in_flight) {
      recorder_.record(Fault::kReadBeforeWait, now.site, [&] {
        return where(at) + ", copied at " + recorder_.site(word.write.site).text();
      });
    } else if (!word.initialised) {
      recorder_.record(Fault::kUninitialised, now.site, [&] { return where(at); });
    }
    const Stamp& write = word.write;
    // What the thread itself wrote reaches the other lanes, too.
    const bool same_epochs =
        write.is_set && write.block_epoch == now.block_epoch && write.warp_epoch == now.warp_epoch;
    if (!is_ordered(write, now) || (by_warp && same_epochs)) {
      report_race(at, "read after write", write, now);
    }
    Stamp& read = word.read;
    if (!read.is_set || read.block_epoch != now.block_epoch) {
      read = Stamp{now, true, by_warp, false};
    } else if (warp_of(read) != warp_of(now)) {
      read.many_warps = true;
    } else if (read.warp_epoch != now.warp_epoch) {
      // Earlier reads of this warp come before its later writes; those of other warps stay noted.
      read = Stamp{now, true, by_warp, read.many_warps};
    } else {
      read.many_threads |= by_warp || read.thread != now.thread;
    }
  }
}

void SharedMemory::note_write(std::uint32_t offset, int bytes, const Moment& now) {
  for (std::uint32_t at = offset; at < offset + static_cast<std::uint32_t>(bytes); at += 4) {
    Word& word = words_[at / 4];
    if (word.in_flight) {
      recorder_.record(Fault::kWriteOverCopy, now.site, [&] {
        return where(at) + ", copied at " + recorder_.site(word.write.site).text();
      });
      word.in_flight = false;
    }
    if (!is_ordered(word.write, now)) report_race(at, "write after write", word.write, now);
    if (!is_ordered(word.read, now)) report_race(at, "write after read", word.read, now);
    word.write = Stamp{now, true, false, false};
    word.initialised = true;
  }
}

void SharedMemory::begin_copy(std::uint32_t offset, const Moment& now) {
  note_write(offset, 16, now);
  std::memset(bytes_.data() + offset, kPoison, 16);
  for (std::uint32_t at = offset; at < offset + 16; at += 4) words_[at / 4].in_flight = true;
}

void SharedMemory::end_copy(std::uint32_t offset, const std::array<unsigned char, 16>& data,
                            const Moment& now) {
  for (std::uint32_t word = 0; word < 4; ++word) {
    Word& w = words_[offset / 4 + word];
    // Written over meanwhile: recorded then.
    if (!w.in_flight) continue;
    w.in_flight = false;
    std::memcpy(bytes_.data() + offset + word * 4, data.data() + word * 4, 4);
    const SiteId site = w.write.site;
    w.write = Stamp{now, true, false, false};
    w.write.site = site;
  }
}

}  // namespace fused_attention::emulator
