// The emulator's 16-bit numbers and matrix instructions against their definitions.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/arch/device.h"
#include "emulator/fragments.h"
#include "emulator/machine.h"

namespace fused_attention::cuda {
namespace {

template <class E>
class HalfTest : public testing::Test {};
using HalfTypes = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(HalfTest, HalfTypes);

TYPED_TEST(HalfTest, EveryNumberSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const TypeParam x{static_cast<std::uint16_t>(bits)};
    const float value = to_float(x);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(from_float<TypeParam>(value)))) << bits;
    } else {
      EXPECT_EQ(from_float<TypeParam>(value).bits, bits);
    }
  }
}

TYPED_TEST(HalfTest, RoundsToNearestAndTiesToEven) {
  for (std::uint32_t bits = 0;
       std::isfinite(to_float(TypeParam{static_cast<std::uint16_t>(bits + 1)})); ++bits) {
    const double low = to_float(TypeParam{static_cast<std::uint16_t>(bits)});
    const double high = to_float(TypeParam{static_cast<std::uint16_t>(bits + 1)});
    const auto middle = static_cast<float>((low + high) / 2);
    if (middle != (low + high) / 2) continue;  // below fp32's own resolution
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    EXPECT_EQ(from_float<TypeParam>(middle).bits, even);
    EXPECT_EQ(from_float<TypeParam>(-middle).bits, even | 0x8000);
    EXPECT_EQ(from_float<TypeParam>(std::nextafter(middle, 0.0F)).bits, bits);
    EXPECT_EQ(from_float<TypeParam>(std::nextafter(middle, INFINITY)).bits, bits + 1);
  }
  EXPECT_TRUE(std::isinf(to_float(from_float<TypeParam>(3.4e38F))));
}

/// One warp multiplies A (16x16, row-major) by B^T (8x16, row-major) through the shared memory.
TYPED_TEST(HalfTest, MatrixProductThroughLdmatrixIsTheProduct) {
  std::vector<TypeParam> a(256);
  std::vector<TypeParam> b(256);
  std::vector<float> product(128);
  for (std::size_t n = 0; n < a.size(); ++n) {
    a[n] = from_float<TypeParam>(static_cast<float>(n * 7 % 13) - 6);
    b[n] = from_float<TypeParam>(static_cast<float>(n * 5 % 11) - 5);
  }
  emulator::GlobalMemory memory;
  memory.add_allocation("a", a.data(), 512);
  memory.add_allocation("b", b.data(), 512);
  memory.add_allocation("product", product.data(), 512);
  memory.allow(a.data(), 512, emulator::Access::kRead);
  memory.allow(b.data(), 512, emulator::Access::kRead);
  memory.allow(product.data(), 512, emulator::Access::kWrite);
  for (const bool transposed : {false, true}) {
    const emulator::Report report =
        emulator::Machine().run({.threads = 32, .shared_bytes = 1024}, memory, [&] {
          const int lane = thread_index();
          const SharedPtr tile_a = shared_region(0, 512, "a");
          const SharedPtr tile_b = shared_region(512, 512, "b");
          cp_async_16(tile_a + lane * 16, GlobalPtr<const TypeParam>(a.data()) + lane * 8, 16);
          cp_async_16(tile_b + lane * 16, GlobalPtr<const TypeParam>(b.data()) + lane * 8, 16);
          cp_async_commit();
          cp_async_wait<0>();
          block_sync();
          Fragment fragment_a;
          Fragment fragment_b;
          ldmatrix_x4(fragment_a, tile_a + lane % 16 * 32 + lane / 16 * 16);
          if (transposed) {
            ldmatrix_x4_trans(fragment_b, tile_b + lane % 16 * 32 + lane / 16 * 16);
          } else {
            ldmatrix_x4(fragment_b, tile_b + (lane % 8 + lane / 16 * 8) * 32 + lane / 8 % 2 * 16);
          }
          float d[4] = {1, 1, 1, 1};
          mma_m16n8k16<TypeParam>(d, fragment_a, fragment_b[0], fragment_b[1]);
          for (int reg = 0; reg < 4; ++reg) {
            const emulator::Place place = emulator::place_in_c(lane, reg);
            store_global(GlobalPtr<float>(product.data()) + place.row * 8 + place.column, d[reg]);
          }
        });
    EXPECT_TRUE(report.clean()) << report.text();
    for (std::size_t m = 0; m < 16; ++m) {
      for (std::size_t n = 0; n < 8; ++n) {
        float sum = 1;
        for (std::size_t k = 0; k < 16; ++k) {
          sum += to_float(a[m * 16 + k]) * to_float(transposed ? b[k * 16 + n] : b[n * 16 + k]);
        }
        EXPECT_EQ(product[m * 8 + n], sum) << m << ' ' << n << ' ' << transposed;
      }
    }
  }
}

}  // namespace
}  // namespace fused_attention::cuda
