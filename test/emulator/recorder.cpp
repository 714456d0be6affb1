#include "recorder.h"

#include <algorithm>

namespace fused_attention::emulator {

void Recorder::clear() {
  report_ = {};
  sites_.assign(1, Site());
  traffic_.assign(1, SharedTraffic());
  ids_.clear();
  index_.clear();
  last_site_ = Site();
  last_id_ = 0;
}

SiteId Recorder::id_of(const Site& site) {
  if (site == last_site_) return last_id_;
  const auto [found, is_new] = ids_.try_emplace(site, static_cast<SiteId>(sites_.size()));
  if (is_new) {
    sites_.push_back(site);
    traffic_.push_back({site});
  }
  last_site_ = site;
  last_id_ = found->second;
  return last_id_;
}

void Recorder::count_banks(SiteId site, const std::uint32_t* offsets, int count, int bytes) {
  constexpr int kBanks = 32;
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
