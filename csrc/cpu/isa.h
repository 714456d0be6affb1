// Which instruction sets this build holds, which the machine runs, and which one is used.
// Compiled without ISA flags, torch-free.
#pragma once

#include <string>
#include <vector>

namespace fused_attention::cpu {

/// Names from slowest to fastest of the ISAs that are compiled in AND that this CPU runs:
/// "generic", "avx2", "avx512", "avx512_bf16"; the last two change places where products of bf16 in
/// pairs are slower than those of fp32.
std::vector<std::string> supported_isas();

/// The ISA that the next call uses. Initially the fastest supported one, limited by the
/// environment: FUSED_ATTENTION_ISA forces one (throws on the first use if it is not supported),
/// else ATEN_CPU_CAPABILITY=default|avx2|avx512 is an upper limit.
std::string active_isa();

/// Makes `name` the active ISA, process-wide. Throws std::invalid_argument, naming the supported
/// ones.
void set_isa(const std::string& name);

}  // namespace fused_attention::cpu
