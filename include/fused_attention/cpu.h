// Which instruction set the CPU kernels use. Process-wide; results may differ between instruction
// sets within rounding.
#pragma once

#include <fused_attention/export.h>

#include <string>
#include <vector>

namespace fused_attention {

/// Names of the instruction sets that this build holds and this machine runs, slowest first:
/// "generic", "avx2", "avx512", "avx512_bf16"; the last two change places where products of bf16 in
/// pairs are slower than those of fp32.
FUSED_ATTENTION_API std::vector<std::string> cpu_isas();

/// The one that the next call uses. At first the fastest, limited by the environment:
/// FUSED_ATTENTION_ISA forces one (throws if the machine does not run it), else ATEN_CPU_CAPABILITY
/// is an upper limit.
FUSED_ATTENTION_API std::string active_cpu_isa();

/// Makes `name` the active one. Throws std::invalid_argument, naming the choices, for an unknown
/// name.
FUSED_ATTENTION_API void set_cpu_isa(const std::string& name);

}  // namespace fused_attention
