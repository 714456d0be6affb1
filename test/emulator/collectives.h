// What a warp does together, and the operands that its lanes bring.
#pragma once

#include <cstdint>

#include "cuda/arch/types.h"
#include "emulator/machine.h"

namespace fused_attention::emulator {

struct AnyOperand {
  bool condition;
  bool result;
};
struct ShuffleOperand {
  std::uint64_t value;
  int mask;
  std::uint64_t result;
};
struct LdmatrixOperand {
  std::uint32_t* to;
  SharedAddress row;
  SiteId site;
};
struct MmaOperand {
  float* d;
  const std::uint32_t* a;
  std::uint32_t b[2];
};

extern const Machine::Collective kWarpSync;
extern const Machine::Collective kWarpAny;
extern const Machine::Collective kShuffleXor;
extern const Machine::Collective kLdmatrix;
extern const Machine::Collective kLdmatrixTrans;

/// Defined for BFloat16 and Float16.
template <class E>
void execute_mma(Machine& machine, void* const* operands);
template <class E>
inline constexpr Machine::Collective kMma{"mma_m16n8k16", &execute_mma<E>};

}  // namespace fused_attention::emulator
