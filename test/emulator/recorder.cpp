#include "recorder.h"

#include <algorithm>

namespace fused_attention::emulator {
namespace {

constexpr int kBanks = 32;

}  // namespace

void Recorder::clear() {
  report_ = {};
  sites_.assign(1, Site());
  traffic_.assign(1, SharedTraffic());
  ids_.clear();
  index_.clear();
  known_.fill({});
}

SiteId Recorder::id_of(const Site& site) {
  KnownSite& known = known_[(site.line ^ site.column * 5) % known_.size()];
  if (site == known.site) return known.id;
  const auto [found, is_new] = ids_.try_emplace(site, static_cast<SiteId>(sites_.size()));
  if (is_new) {
    sites_.push_back(site);
    traffic_.push_back({site});
  }
  known = {site, found->second};
  return known.id;
}

void Recorder::count_banks(SiteId site, const std::uint32_t* offsets, int count, int bytes) {
  // The usual case first: no bank has two words.
  std::uint32_t used = 0;
  std::array<std::uint32_t, kBanks> words;
  for (int n = 0; n < count; ++n) {
    for (int word = 0; word < bytes / 4; ++word) {
      const std::uint32_t at = offsets[n] / 4 + static_cast<std::uint32_t>(word);
      const std::uint32_t bank = at % kBanks;
      if ((used >> bank & 1) != 0 && words[bank] != at) {
        count_conflicts(site, offsets, count, bytes);
        return;
      }
      used |= 1U << bank;
      words[bank] = at;
    }
  }
  traffic_[site].wavefronts += used != 0;
  traffic_[site].ideal += used != 0;
}

void Recorder::count_conflicts(SiteId site, const std::uint32_t* offsets, int count, int bytes) {
  // Distinct words of each bank; accesses to the same word are served together.
  std::array<std::array<std::uint32_t, kBanks>, kBanks> words;
  std::array<int, kBanks> depth{};
  int distinct = 0;
  for (int n = 0; n < count; ++n) {
    for (int word = 0; word < bytes / 4; ++word) {
      const std::uint32_t at = offsets[n] / 4 + static_cast<std::uint32_t>(word);
      auto& seen = words[at % kBanks];
      int& used = depth[at % kBanks];
      if (std::find(seen.begin(), seen.begin() + used, at) != seen.begin() + used) continue;
      seen[static_cast<std::size_t>(used++)] = at;
      ++distinct;
    }
  }
  traffic_[site].wavefronts += *std::max_element(depth.begin(), depth.end());
  traffic_[site].ideal += (distinct + kBanks - 1) / kBanks;
}

Report Recorder::take_report() {
  for (SharedTraffic& site : traffic_) {
    if (site.wavefronts > 0) report_.traffic.push_back(site);
  }
  Report report = std::move(report_);
  clear();
  return report;
}

}  // namespace fused_attention::emulator
