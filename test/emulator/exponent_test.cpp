// What the kernels' exponents and gradients of scores owe to products that are rounded by
// themselves.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cuda/kernels/exact_backward.h"
#include "cuda/kernels/softmax.h"

namespace fused_attention::cuda {
namespace {

constexpr float kLog2OfE = 0x1.715476p0F;

/// What the compiler cannot compute with beforehand.
template <class T>
T unknown(T x) {
  const volatile T y = x;
  return y;
}

std::vector<float> maxima() {
  std::vector<float> result;
  for (float x = 0.37F; x < 1e9F; x *= -7.3F) result.push_back(x);
  return result;
}

TEST(ExponentTest, NothingIsRescaledWhereTheMaximumStays) {
  for (const float max : maxima()) {
    const ScaledExponent scaled{0.125F * kLog2OfE};
    EXPECT_EQ(scaled.rescale(unknown(max), unknown(scaled.shift_of(max))), 1) << max;
    const NaturalExponent natural;
    EXPECT_EQ(natural.rescale(unknown(max), unknown(natural.shift_of(max))), 1) << max;
  }
}

/// -0 says that a key is hidden: a product that underflows must not.
TEST(ExponentTest, GradientOfAVisibleScoreIsNotThatOfAHiddenOne) {
  for (const float gradient : {-1e-30F, 1e-30F, 0.0F}) {
    const ExactRowStatistics<float> row{0, 1, 0};
    EXPECT_FALSE(std::signbit(exact_score_gradient(row, unknown(-50.0F), gradient))) << gradient;
    EXPECT_TRUE(std::signbit(exact_score_gradient(row, -INFINITY, gradient))) << gradient;
  }
  for (const double gradient : {-1e-300, 1e-300, 0.0}) {
    const ExactRowStatistics<double> row{0, 1, 0};
    EXPECT_FALSE(std::signbit(exact_score_gradient(row, unknown(-600.0), gradient))) << gradient;
    EXPECT_TRUE(std::signbit(exact_score_gradient<double>(row, -INFINITY, gradient))) << gradient;
  }
}

}  // namespace
}  // namespace fused_attention::cuda
