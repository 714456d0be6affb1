// What the kernels' exponents and gradients of scores owe to products that are rounded by
// themselves.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/online_softmax.h"
#include "cuda/kernels/exact_backward.h"
#include "cuda/kernels/softmax.h"

namespace fused_attention::cuda {
namespace {

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
    const ScaledExponent scaled{0.125F * kLog2E};
    EXPECT_EQ(scaled.rescaling(unknown(max), unknown(scaled.shift_of(max))), 0) << max;
    const DifferenceExponent natural;
    EXPECT_EQ(natural.rescaling(unknown(max), unknown(natural.shift_of(max))), 0) << max;
  }
}

TEST(ExponentTest, LogsumexpIsThatOfCore) {
  constexpr double kUnit = 0x1p-24;
  for (const float scale : {1.0F, 0.125F, 0.0721688F, 3.0F}) {
    const ScaledExponent scaled{scale * kLog2E};
    for (const float max : maxima()) {
      for (const float sum : {1.0F, 1.7F, 977.0F, 3e8F}) {
        const double product = static_cast<double>(scale) * max;
        const double want = core::logsumexp(product, sum);
        // log2(e), ln(2), scale * log2(e) and shift_of are rounded; then log, to two units; the
        // sum.
        const double bound = kUnit * (4 * std::fabs(product) + 2 * std::log(sum) + std::fabs(want));
        EXPECT_NEAR(scaled.logsumexp(max, sum), want, bound) << scale << ' ' << max << ' ' << sum;
        const double natural = core::logsumexp(max, sum);
        EXPECT_NEAR(DifferenceExponent().logsumexp(max, sum), natural,
                    kUnit * (2 * std::log(sum) + std::fabs(natural)))
            << max << ' ' << sum;
      }
    }
    EXPECT_EQ(scaled.logsumexp(-INFINITY, 0), core::logsumexp(-INFINITY, 0));
    EXPECT_EQ(DifferenceExponent().logsumexp(-INFINITY, 0), core::logsumexp(-INFINITY, 0));
    EXPECT_TRUE(std::isnan(scaled.logsumexp(1, NAN)));
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
