// What a run in the emulator found out: faults, and bank conflicts by access site.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

namespace fused_attention::emulator {

enum class Fault {
  kSharedRace,      // two threads, one of them writing, without a barrier in between
  kReadBeforeWait,  // of what cp.async still copies
  kWriteOverCopy,   // to where cp.async still copies
  kUninitialised,   // shared memory that the block has not written
  kSharedRange,     // outside the region that the pointer was made for
  kGlobalRange,     // outside the elements that the launch may touch
  kGlobalRace,      // global memory that the same launch wrote, or has read before a write
  kMisaligned,
  kDivergence,  // threads wait for each other in different places, or for ever
};

const char* name_of(Fault fault);

/// Where in a kernel body an access stands.
struct Site {
  const char* file = "";
  std::uint32_t line = 0;
  std::uint32_t column = 0;

  Site() = default;
  Site(const std::source_location& where)
      : file(where.file_name()), line(where.line()), column(where.column()) {}
  bool operator==(const Site&) const = default;
  std::string text() const;
};

struct Finding {
  Fault fault;
  Site site;
  std::string text;  // of the first occurrence
  std::int64_t count;
};

/// Shared-memory traffic of one access site. `wavefronts` is what the banks need, `ideal` what the
/// same bytes need at best; more of the first is a bank conflict.
struct SharedTraffic {
  Site site;
  std::int64_t wavefronts = 0;
  std::int64_t ideal = 0;
};

struct Report {
  std::vector<Finding> findings;
  std::vector<SharedTraffic> traffic;

  bool clean() const { return findings.empty(); }
  std::int64_t count(Fault fault) const;
  /// Wavefronts beyond the ideal, over all sites.
  std::int64_t bank_conflicts() const;
  /// One line for each finding and each site with conflicts.
  std::string text() const;
  /// Adds what another launch found.
  void merge(const Report& other);
};

}  // namespace fused_attention::emulator
