// Runs the CUDA kernels for a test case in the emulator, through the host's own choice of kernel
// and grid, and compares with the formula.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "cpp/cpu/call.h"
#include "emulator/machine.h"

namespace fused_attention::test {

inline std::string name_of(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kFloat32:
      return "float32";
    default:
      return "float64";
  }
}

/// Runs the forward kernel of a case. Only the elements of its tensors may be touched.
emulator::Report run_forward(Call& call, std::uint64_t seed = 0);

/// Runs the backward kernels of a case whose forward pass has run.
emulator::Report run_backward(Call& call, std::uint64_t seed = 0);

/// Bank conflicts of a kernel's loops. The ends of a block are left out, and its table: where not
/// all lanes take part in every access, the emulator cannot tell which of them belong together.
inline std::int64_t loop_conflicts(const emulator::Report& report) {
  std::int64_t sum = 0;
  for (const emulator::SharedTraffic& t : report.traffic) {
    const std::string site = t.site.text();
    if (site.find("_output.h") != std::string::npos || site.rfind("block.h", 0) == 0) continue;
    sum += t.wavefronts - t.ideal;
  }
  return sum;
}

/// Rounding of a weighted mean of values of size 1: of the weights and of the result to the type,
/// of sums in fp32 or fp64.
inline double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return 4 * 0x1p-8;
    case DType::kFloat16:
      return 4 * 0x1p-11;
    case DType::kFloat32:
      return 32 * 0x1p-24;
    default:
      return 32 * 0x1p-53;
  }
}

inline void expect_forward(const Call& call, const Expected& expected) {
  const core::Sizes& s = call.forward.problem.sizes;
  double worst = 0;
  double worst_lse = 0;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads_q; ++h) {
      for (std::int64_t i = 0; i < s.seq_q; ++i) {
        const auto row = static_cast<std::size_t>((b * s.heads_q + h) * s.seq_q + i);
        for (std::int64_t d = 0; d < s.dim_v; ++d) {
          const double want = expected.output[row][static_cast<std::size_t>(d)];
          const double got = call.out.get(b, h, i, d);
          const double error = std::fabs(got - want) / (1 + std::fabs(want));
          if (!(error <= worst)) worst = error;
        }
        const double want = expected.logsumexp[row];
        const double got = call.lse_at(row);
        const double error = got == want ? 0 : std::fabs(got - want) / (1 + std::fabs(want));
        if (!(error <= worst_lse)) worst_lse = error;
      }
    }
  }
  // A score of size s is off by some s * epsilon, and so is its weight.
  double largest = 0;
  for (const double lse : expected.logsumexp) {
    if (std::isfinite(lse)) largest = std::fmax(largest, std::fabs(lse));
  }
  const double epsilon = call.is_double ? 0x1p-53 : 0x1p-24;
  EXPECT_LE(worst, tolerance_of(call.forward.problem.dtype) + 4 * epsilon * largest);
  EXPECT_LE(worst_lse, 32 * epsilon);
}

/// Largest error of a gradient, in units of its largest element.
inline double gradient_error(const Tensor& got, const std::vector<Row>& want) {
  double worst = 0;
  double largest = 0;
  for (std::int64_t b = 0; b < got.shape[0]; ++b) {
    for (std::int64_t h = 0; h < got.shape[1]; ++h) {
      for (std::int64_t s = 0; s < got.shape[2]; ++s) {
        const auto row = static_cast<std::size_t>((b * got.shape[1] + h) * got.shape[2] + s);
        for (std::int64_t d = 0; d < got.shape[3]; ++d) {
          const double x = want[row][static_cast<std::size_t>(d)];
          const double error = std::fabs(got.get(b, h, s, d) - x);
          if (!(error <= worst)) worst = error;
          largest = std::fmax(largest, std::fabs(x));
        }
      }
    }
  }
  return largest == 0 ? worst : worst / largest;
}

/// `cancellation`: how many times the terms of dS = P (dP - delta) are as large as their
/// difference. delta reads O as it is stored, rounded.
inline void expect_backward(const Call& call, const Expected& expected, double cancellation = 1) {
  const double tolerance = tolerance_of(call.backward.problem.dtype) * cancellation;
  EXPECT_LE(gradient_error(call.dq, expected.grad_query), tolerance) << "query";
  EXPECT_LE(gradient_error(call.dk, expected.grad_key), tolerance) << "key";
  EXPECT_LE(gradient_error(call.dv, expected.grad_value), tolerance) << "value";
}

}  // namespace fused_attention::test
