#include <cmath>
#include <vector>

#include "emulator/kernel_call.h"
#include "emulator/rounding_bounds.h"

namespace fused_attention::test {
namespace {

void expect_close(const char* name, const Tensor& got, const std::vector<Row>& want,
                  const std::vector<Row>& bounds) {
  double worst = 0;  // in units of its bound
  for (std::int64_t b = 0; b < got.shape[0]; ++b) {
    for (std::int64_t h = 0; h < got.shape[1]; ++h) {
      for (std::int64_t s = 0; s < got.shape[2]; ++s) {
        const auto row = static_cast<std::size_t>((b * got.shape[1] + h) * got.shape[2] + s);
        for (std::int64_t d = 0; d < got.shape[3]; ++d) {
          const auto column = static_cast<std::size_t>(d);
          const double error = std::fabs(got.get(b, h, s, d) - want[row][column]);
          const double ratio = error == 0 ? 0 : error / bounds[row][column];
          if (!(ratio <= worst)) worst = ratio;
        }
      }
    }
  }
  EXPECT_LE(worst, 1) << name;
}

}  // namespace

void expect_forward(const Call& call, const Expected& expected) {
  const Bounds bounds = rounding_bounds(call, expected);
  expect_close("output", call.out, expected.output, bounds.output);
  double worst = 0;
  for (std::size_t row = 0; row < bounds.logsumexp.size(); ++row) {
    const double want = expected.logsumexp[row];
    const double got = call.lse_at(row);
    const double ratio = got == want ? 0 : std::fabs(got - want) / bounds.logsumexp[row];
    if (!(ratio <= worst)) worst = ratio;
  }
  EXPECT_LE(worst, 1) << "logsumexp";
}

void expect_backward(const Call& call, const Expected& expected) {
  const Bounds bounds = rounding_bounds(call, expected);
  expect_close("grad_query", call.dq, expected.grad_query, bounds.grad_query);
  expect_close("grad_key", call.dk, expected.grad_key, bounds.grad_key);
  expect_close("grad_value", call.dv, expected.grad_value, bounds.grad_value);
}

}  // namespace fused_attention::test
