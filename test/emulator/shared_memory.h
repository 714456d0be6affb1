// The shared memory of a block with its shadow: who wrote and read each word when.
//
// "When" is an epoch of the block, which a block barrier ends, and one of the warp, which warp_sync
// ends. Two accesses to a word by different threads, one of them a write, are a race unless a
// barrier of the block, or one of the warp if both are in it, lies in between.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "recorder.h"

namespace fused_attention::emulator {

/// A pointer's offset in the block's shared memory, and the region it was made for.
struct SharedAddress {
  std::uint32_t offset = 0;
  std::uint16_t region = 0;
};

/// Who accesses, and when.
struct Moment {
  std::uint32_t block_epoch = 0;
  std::uint32_t warp_epoch = 0;
  std::uint16_t thread = 0;
  SiteId site = 0;
};

class SharedMemory {
 public:
  explicit SharedMemory(Recorder& recorder) : recorder_(recorder) {}

  /// A new block begins: nothing is initialised.
  void begin_block(int bytes);
  std::uint16_t region(int offset, int bytes, const char* name, SiteId site);

  /// The bytes at an address, or nullptr (and a record) if the access leaves the region or is
  /// misaligned.
  unsigned char* locate(SharedAddress at, int bytes, SiteId site);
  /// `by_warp`: the instruction hands the words to lanes of the whole warp.
  void note_read(std::uint32_t offset, int bytes, const Moment& now, bool by_warp = false);
  void note_write(std::uint32_t offset, int bytes, const Moment& now);

  /// cp.async: from `begin_copy` until `end_copy` the words are poison.
  void begin_copy(std::uint32_t offset, const Moment& now);
  void end_copy(std::uint32_t offset, const std::array<unsigned char, 16>& data, const Moment& now);

 private:
  struct Region {
    std::uint32_t begin;
    std::uint32_t end;
    std::string name;
  };
  struct Stamp : Moment {
    bool is_set = false;
    bool many_threads = false;  // more threads of the warp in this warp epoch
    bool many_warps = false;    // more warps in this block epoch
  };
  struct Word {
    Stamp write;
    Stamp read;
    bool initialised = false;
    bool in_flight = false;
  };
  static bool is_ordered(const Stamp& before, const Moment& now);
  void report_race(std::uint32_t offset, const char* kind, const Stamp& before, const Moment& now);
  std::string where(std::uint32_t offset) const;

  Recorder& recorder_;
  std::vector<unsigned char> bytes_;
  std::vector<Word> words_;
  std::vector<Region> regions_;
};

}  // namespace fused_attention::emulator
