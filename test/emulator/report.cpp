#include "report.h"

#include <algorithm>
#include <cstring>

namespace fused_attention::emulator {

const char* name_of(Fault fault) {
  switch (fault) {
    case Fault::kSharedRace:
      return "shared-memory race";
    case Fault::kReadBeforeWait:
      return "read of a copy before its wait";
    case Fault::kWriteOverCopy:
      return "write over a copy in flight";
    case Fault::kUninitialised:
      return "uninitialised shared memory";
    case Fault::kSharedRange:
      return "shared memory out of range";
    case Fault::kGlobalRange:
      return "global memory out of range";
    case Fault::kGlobalRace:
      return "global memory written by the same launch";
    case Fault::kMisaligned:
      return "misaligned access";
    case Fault::kDivergence:
      return "divergence";
  }
  return "";
}

std::string Site::text() const {
  const char* slash = std::strrchr(file, '/');
  return std::string(slash != nullptr ? slash + 1 : file) + ":" + std::to_string(line);
}

std::int64_t Report::count(Fault fault) const {
  std::int64_t sum = 0;
  for (const Finding& finding : findings) {
    if (finding.fault == fault) sum += finding.count;
  }
  return sum;
}

std::int64_t Report::bank_conflicts() const {
  std::int64_t sum = 0;
  for (const SharedTraffic& site : traffic) sum += site.wavefronts - site.ideal;
  return sum;
}

std::string Report::text() const {
  std::string lines;
  for (const Finding& f : findings) {
    lines += f.site.text() + ": " + name_of(f.fault) + ": " + f.text + " (" +
             std::to_string(f.count) + " times)\n";
  }
  for (const SharedTraffic& t : traffic) {
    if (t.wavefronts == t.ideal) continue;
    lines += t.site.text() + ": bank conflicts: " + std::to_string(t.wavefronts) +
             " wavefronts where " + std::to_string(t.ideal) + " would do\n";
  }
  return lines;
}

void Report::merge(const Report& other) {
  for (const Finding& f : other.findings) {
    const auto same = std::find_if(findings.begin(), findings.end(), [&](const Finding& mine) {
      return mine.fault == f.fault && mine.site == f.site;
    });
    if (same == findings.end()) {
      findings.push_back(f);
    } else {
      same->count += f.count;
    }
  }
  for (const SharedTraffic& t : other.traffic) {
    const auto same = std::find_if(traffic.begin(), traffic.end(),
                                   [&](const SharedTraffic& mine) { return mine.site == t.site; });
    if (same == traffic.end()) {
      traffic.push_back(t);
    } else {
      same->wavefronts += t.wavefronts;
      same->ideal += t.ideal;
    }
  }
}

}  // namespace fused_attention::emulator
