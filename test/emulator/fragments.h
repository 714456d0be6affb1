// Where the elements of mma.m16n8k16 and ldmatrix operands lie: PTX ISA, "Matrix fragments for
// mma.m16n8k16" and "ldmatrix".
#pragma once

namespace fused_attention::emulator {

struct Place {
  int row;
  int column;
};

/// Element `half` (0: low) of register `reg` of lane `lane` in the 16x16 operand A.
constexpr Place place_in_a(int lane, int reg, int half) {
  return {lane / 4 + reg % 2 * 8, lane % 4 * 2 + half + reg / 2 * 8};
}

/// In the 16x8 operand B (row: k, column: n).
constexpr Place place_in_b(int lane, int reg, int half) {
  return {lane % 4 * 2 + half + reg * 8, lane / 4};
}

/// Register `reg` of lane `lane` in the 16x8 accumulator.
constexpr Place place_in_c(int lane, int reg) {
  return {lane / 4 + reg / 2 * 8, lane % 4 * 2 + reg % 2};
}

/// Element `half` of a lane's register in an 8x8 matrix that ldmatrix read.
constexpr Place place_in_matrix(int lane, int half) { return {lane / 4, lane % 4 * 2 + half}; }

}  // namespace fused_attention::emulator
