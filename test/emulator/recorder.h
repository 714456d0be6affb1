// Collects the report of a launch. Recording is cheap, because a broken kernel records hundreds of
// thousands of faults: text is made once for each kind and site.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "report.h"

namespace fused_attention::emulator {

using SiteId = std::uint16_t;

class Recorder {
 public:
  Recorder() { clear(); }
  void clear();

  SiteId id_of(const Site& site);
  const Site& site(SiteId id) const { return sites_[id]; }

  /// `describe` makes the text, and is called for the first of its kind and site only.
  template <class Describe>
  void record(Fault fault, SiteId site, const Describe& describe) {
    std::int64_t& index = index_[(static_cast<std::uint32_t>(fault) << 16) | site];
    if (index == 0) {
      report_.findings.push_back({fault, sites_[site], describe(), 0});
      index = static_cast<std::int64_t>(report_.findings.size());
    }
    ++report_.findings[static_cast<std::size_t>(index - 1)].count;
  }

  /// One phase of a warp's access to shared memory: `count` accesses of `bytes` at `offsets`.
  void count_banks(SiteId site, const std::uint32_t* offsets, int count, int bytes);

  Report take_report();

 private:
  void count_conflicts(SiteId site, const std::uint32_t* offsets, int count, int bytes);

  struct SiteHash {
    std::size_t operator()(const Site& s) const {
      return std::hash<const void*>{}(s.file) ^ (s.line * 2654435761U) ^ (s.column * 40503U);
    }
  };
  Report report_;
  std::vector<Site> sites_;
  std::vector<SharedTraffic> traffic_;
  std::unordered_map<Site, SiteId, SiteHash> ids_;
  std::unordered_map<std::uint32_t, std::int64_t> index_;
  /// Sites used lately: the loops of a kernel go round a few.
  struct KnownSite {
    Site site;
    SiteId id = 0;
  };
  std::array<KnownSite, 64> known_;
};

}  // namespace fused_attention::emulator
