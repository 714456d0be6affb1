// The emulator's matrix instructions against the layouts that CuTe, in CUTLASS's headers, gives
// them: an independent source for what a GPU does.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>

#include "cuda/arch/device.h"
#include "emulator/machine.h"

namespace fused_attention::cuda {
namespace {

/// Index of element `half` of register `reg` in a list of a lane's values, two to a register.
int value_index(int reg, int half) { return reg * 2 + half; }

template <class Element, class Atom>
struct Product {
  using E = Element;
  using Traits = cute::MMA_Traits<Atom>;
};

template <class P>
class MmaLayoutTest : public testing::Test {};
using Products = testing::Types<Product<BFloat16, cute::SM80_16x8x16_F32BF16BF16F32_TN>,
                                Product<Float16, cute::SM80_16x8x16_F32F16F16F32_TN>>;
TYPED_TEST_SUITE(MmaLayoutTest, Products);

/// Small whole numbers, so that sums are exact; every place has another one nearby.
int element_a(int m, int k) { return (m * 5 + k * 3) % 17 - 8; }
int element_b(int n, int k) { return (n * 7 + k * 11) % 13 - 6; }

TYPED_TEST(MmaLayoutTest, FragmentsLieWhereCuteHasThem) {
  using E = typename TypeParam::E;
  using Traits = typename TypeParam::Traits;
  // CuTe's layouts map (lane, value) to m + M * k, n + N * k and m + M * n.
  const typename Traits::ALayout layout_a;
  const typename Traits::BLayout layout_b;
  const typename Traits::CLayout layout_c;
  std::array<std::array<float, 4>, emulator::kWarpSize> result{};
  emulator::GlobalMemory memory;
  const emulator::Report report = emulator::Machine().run({.threads = 32}, memory, [&] {
    const int lane = thread_index();
    Fragment a;
    std::uint32_t b[2];
    const auto a_value = [&](int reg, int half) {
      const int at = layout_a(lane, value_index(reg, half));
      return static_cast<float>(element_a(at % 16, at / 16));
    };
    const auto b_value = [&](int reg, int half) {
      const int at = layout_b(lane, value_index(reg, half));
      return static_cast<float>(element_b(at % 8, at / 8));
    };
    for (int reg = 0; reg < 4; ++reg) a[reg] = pack2<E>(a_value(reg, 0), a_value(reg, 1));
    for (int reg = 0; reg < 2; ++reg) b[reg] = pack2<E>(b_value(reg, 0), b_value(reg, 1));
    float d[4] = {1, 2, 3, 4};
    mma_m16n8k16<E>(d, a, b[0], b[1]);
    for (int reg = 0; reg < 4; ++reg) {
      result[static_cast<std::size_t>(lane)][static_cast<std::size_t>(reg)] = d[reg];
    }
  });
  ASSERT_TRUE(report.clean()) << report.text();
  for (int lane = 0; lane < emulator::kWarpSize; ++lane) {
    for (int reg = 0; reg < 4; ++reg) {
      const int at = layout_c(lane, reg);
      int want = reg + 1;
      for (int k = 0; k < 16; ++k) want += element_a(at % 16, k) * element_b(at / 16, k);
      EXPECT_EQ(result[static_cast<std::size_t>(lane)][static_cast<std::size_t>(reg)],
                static_cast<float>(want))
          << "lane " << lane << " register " << reg;
    }
  }
}

/// Loads four matrices from shared memory of which 16-bit element i is i, lane l's row being the
/// 16 bytes that CuTe gives it, and compares each register with CuTe's destination.
template <class Atom, class Load>
void expect_matrices_of_cute(const Load& load) {
  using Traits = cute::Copy_Traits<Atom>;
  const typename Traits::SrcLayout source;
  const typename Traits::DstLayout destination;
  std::array<std::array<std::uint32_t, 4>, emulator::kWarpSize> result{};
  emulator::GlobalMemory memory;
  const emulator::Report report =
      emulator::Machine().run({.threads = 32, .shared_bytes = 512}, memory, [&] {
        const int lane = thread_index();
        const SharedPtr base = shared_region(0, 512, "matrices");
        for (int word = lane; word < 128; word += 32) {
          store_shared(base + word * 4, static_cast<std::uint32_t>(word * 2) |
                                            static_cast<std::uint32_t>(word * 2 + 1) << 16);
        }
        warp_sync();
        Fragment to;
        load(to, base + source(lane, 0) / 8);
        for (int reg = 0; reg < 4; ++reg) {
          result[static_cast<std::size_t>(lane)][static_cast<std::size_t>(reg)] = to[reg];
        }
      });
  ASSERT_TRUE(report.clean()) << report.text();
  for (int lane = 0; lane < emulator::kWarpSize; ++lane) {
    for (int reg = 0; reg < 4; ++reg) {
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t word =
            result[static_cast<std::size_t>(lane)][static_cast<std::size_t>(reg)];
        EXPECT_EQ(static_cast<int>(word >> (half * 16) & 0xFFFF),
                  destination(lane, value_index(reg, half) * 16) / 16)
            << "lane " << lane << " register " << reg << " half " << half;
      }
    }
  }
}

TEST(LdmatrixLayoutTest, PlainMatricesLieWhereCuteHasThem) {
  expect_matrices_of_cute<cute::SM75_U32x4_LDSM_N>(
      [](Fragment& to, SharedPtr row) { ldmatrix_x4(to, row); });
}

TEST(LdmatrixLayoutTest, TransposedMatricesLieWhereCuteHasThem) {
  expect_matrices_of_cute<cute::SM75_U16x8_LDSM_T>(
      [](Fragment& to, SharedPtr row) { ldmatrix_x4_trans(to, row); });
}

}  // namespace
}  // namespace fused_attention::cuda
