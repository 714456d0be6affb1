// Plain types that kernel bodies pass through the seam. Torch-free, and free of CUDA's own headers.
#pragma once

#include <cstdint>

namespace fused_attention::cuda {

/// Storage of one 16-bit number. Arithmetic is done in fp32: see to_float, from_float, pack2.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

/// N values that are loaded and stored as one.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T value[N];
};

using Words2 = Pack<std::uint32_t, 2>;
using Words4 = Pack<std::uint32_t, 4>;

/// Four lanes' worth of a 16x16, 16x8 or 8x8 operand: see mma_m16n8k16 and ldmatrix_x4.
using Fragment = std::uint32_t[4];

}  // namespace fused_attention::cuda
