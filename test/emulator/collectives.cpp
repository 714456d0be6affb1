#include "emulator/collectives.h"

#include <cstring>

#include "emulator/fragments.h"
#include "emulator/half.h"

namespace fused_attention::emulator {
namespace {

void execute_warp_sync(Machine& machine, void* const* /*operands*/) { machine.end_warp_epoch(); }

void execute_warp_any(Machine& /*machine*/, void* const* operands) {
  bool any = false;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    any |= static_cast<const AnyOperand*>(operands[lane])->condition;
  }
  for (int lane = 0; lane < kWarpSize; ++lane)
    static_cast<AnyOperand*>(operands[lane])->result = any;
}

void execute_shuffle_xor(Machine& /*machine*/, void* const* operands) {
  for (int lane = 0; lane < kWarpSize; ++lane) {
    auto* own = static_cast<ShuffleOperand*>(operands[lane]);
    own->result =
        static_cast<const ShuffleOperand*>(operands[(lane ^ own->mask) % kWarpSize])->value;
  }
}

void execute_ldmatrix(Machine& machine, void* const* operands, bool transpose) {
  const SiteId site = static_cast<const LdmatrixOperand*>(operands[0])->site;
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::uint16_t element[8][8];
    SharedAddress rows[8];
    for (int row = 0; row < 8; ++row) {
      const int lane = matrix * 8 + row;
      rows[row] = static_cast<const LdmatrixOperand*>(operands[lane])->row;
      unsigned char bytes[16];
      machine.read_matrix_row(bytes, lane, rows[row], site);
      std::memcpy(element[row], bytes, sizeof bytes);
    }
    machine.count_matrix(rows, site);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      std::uint32_t word = 0;
      for (int half = 0; half < 2; ++half) {
        const Place place = place_in_matrix(lane, half);
        const std::uint16_t bits =
            transpose ? element[place.column][place.row] : element[place.row][place.column];
        word |= static_cast<std::uint32_t>(bits) << (16 * half);
      }
      static_cast<LdmatrixOperand*>(operands[lane])->to[matrix] = word;
    }
  }
}

void execute_ldmatrix_plain(Machine& machine, void* const* operands) {
  execute_ldmatrix(machine, operands, false);
}
void execute_ldmatrix_trans(Machine& machine, void* const* operands) {
  execute_ldmatrix(machine, operands, true);
}

template <class E>
float half_of(std::uint32_t word, int half) {
  return value_of(E{static_cast<std::uint16_t>(word >> (16 * half))});
}

}  // namespace

/// Products are exact in double and so, nearly always, is their sum: one rounding at the end. A
/// tensor core rounds differently, in the last bit of fp32.
template <class E>
void execute_mma(Machine& /*machine*/, void* const* operands) {
  double a[16][16];
  double b[8][16];
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto* operand = static_cast<const MmaOperand*>(operands[lane]);
    for (int half = 0; half < 2; ++half) {
      for (int reg = 0; reg < 4; ++reg) {
        const Place place = place_in_a(lane, reg, half);
        a[place.row][place.column] = half_of<E>(operand->a[reg], half);
      }
      for (int reg = 0; reg < 2; ++reg) {
        const Place place = place_in_b(lane, reg, half);
        b[place.column][place.row] = half_of<E>(operand->b[reg], half);
      }
    }
  }
  for (int lane = 0; lane < kWarpSize; ++lane) {
    auto* operand = static_cast<MmaOperand*>(operands[lane]);
    for (int reg = 0; reg < 4; ++reg) {
      const Place place = place_in_c(lane, reg);
      double sum = operand->d[reg];
      for (int k = 0; k < 16; ++k) sum += a[place.row][k] * b[place.column][k];
      operand->d[reg] = static_cast<float>(sum);
    }
  }
}

template void execute_mma<cuda::BFloat16>(Machine&, void* const*);
template void execute_mma<cuda::Float16>(Machine&, void* const*);

const Machine::Collective kWarpSync{"warp_sync", &execute_warp_sync};
const Machine::Collective kWarpAny{"warp_any", &execute_warp_any};
const Machine::Collective kShuffleXor{"shuffle_xor", &execute_shuffle_xor};
const Machine::Collective kLdmatrix{"ldmatrix_x4", &execute_ldmatrix_plain};
const Machine::Collective kLdmatrixTrans{"ldmatrix_x4_trans", &execute_ldmatrix_trans};

}  // namespace fused_attention::emulator
