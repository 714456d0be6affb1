#include "isa.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "kernel_table.h"

namespace fused_attention::cpu {
namespace {

struct Candidate {
  const KernelTable& (*table)();
  bool supported;
};

/// From slowest to fastest.
std::vector<const KernelTable*> find_supported() {
  std::vector<Candidate> candidates = {{generic::kernel_table, true}};
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  // Where vdpbf16ps takes as long as an FMA, as on Zen 4, which is twice the work; on Sapphire
  // Rapids it takes four times as long (bench_kernels, bf16_dot).
  const bool fast_bf16 = bf16 && __builtin_cpu_is("amd");
  candidates.push_back({avx2::kernel_table, avx2});
  candidates.push_back({avx512_bf16::kernel_table, bf16 && !fast_bf16});
  candidates.push_back({avx512::kernel_table, avx512});
  candidates.push_back({avx512_bf16::kernel_table, fast_bf16});
#endif
  std::vector<const KernelTable*> tables;
  for (const Candidate& candidate : candidates) {
    if (candidate.supported) tables.push_back(&candidate.table());
  }
  return tables;
}

const std::vector<const KernelTable*>& supported_tables() {
  static const std::vector<const KernelTable*> tables = find_supported();
  return tables;
}

const KernelTable& find_table(const std::string& name, const std::string& origin) {
  std::string names;
  for (const KernelTable* table : supported_tables()) {
    if (name == table->name) return *table;
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  throw std::invalid_argument(
      origin + ": expected one of the ISAs that this machine and this build support (" + names +
      "), but got '" + name + "'");
}

/// The fastest ISA that the environment allows.
const KernelTable& initial_table() {
  if (const char* forced = std::getenv("FUSED_ATTENTION_ISA"); forced != nullptr && *forced != 0) {
    return find_table(forced, "FUSED_ATTENTION_ISA");
  }
  const auto& tables = supported_tables();
  std::string limit;
  if (const char* capability = std::getenv("ATEN_CPU_CAPABILITY")) limit = capability;
  const std::size_t most = limit == "default" ? 1 : limit == "avx2" ? 2 : tables.size();
  return *tables[std::min(most, tables.size()) - 1];
}

std::atomic<const KernelTable*>& active() {
  static std::atomic<const KernelTable*> table{&initial_table()};
  return table;
}

}  // namespace

const KernelTable& active_table() { return *active().load(std::memory_order_relaxed); }

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const KernelTable* table : supported_tables()) names.emplace_back(table->name);
  return names;
}

std::string active_isa() { return active_table().name; }

void set_isa(const std::string& name) {
  active().store(&find_table(name, "fused_attention::set_cpu_isa"), std::memory_order_relaxed);
}

}  // namespace fused_attention::cpu
