// How far the kernels' results may be from the formula, from the number formats alone.
#pragma once

#include <vector>

#include "cpp/cpu/call.h"

namespace fused_attention::test {

/// Bounds of the absolute errors of the elements of an Expected.
struct Bounds {
  std::vector<Row> output, grad_query, grad_key, grad_value;
  Row logsumexp;
};

/// With u the unit roundoff of the elements' type and w that of the computing type, fp32 or fp64:
///   - A sum of n products is off by (1 + sqrt(n)) w times the sum of their magnitudes, as
///     test/reference.py has it.
///   - A weight P = exp(s - LSE) is off by the errors of s and LSE, and by the roundings of the
///     exponent, each w times its size.
///   - Half precision rounds P and dS before they are multiplied, and the backward pass reads the
///     rounded output. These many roundings are bounded, independent and of mean 0: by Hoeffding's
///     inequality their effect, sum of x_n, exceeds z sqrt(sum of x_n^2) with probability
///     2 exp(-z^2 / 2). With z = 7 that is 5e-11 for an element, of which all tests have 10^6.
///   - The result is rounded once more, by u times its size.
Bounds rounding_bounds(const Call& call, const Expected& expected);

}  // namespace fused_attention::test
