#include "emulator/rounding_bounds.h"

#include <cmath>

namespace fused_attention::test {
namespace {

/// Roundoff of a type, and its smallest rounding.
struct Format {
  double unit;
  double least;

  double rounding(double x) const { return std::fmax(unit * std::fabs(x), least); }
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return {0x1p-8, 0x1p-126};
    case DType::kFloat16:
      return {0x1p-11, 0x1p-25};
    case DType::kFloat32:
      return {0x1p-24, 0x1p-126};
    default:
      return {0x1p-53, 0x1p-1022};
  }
}

double square(double x) { return x * x; }

/// The error of one number: the sum of systematic errors, the squares of independent ones, and the
/// sum of the magnitudes of its terms, which are `terms` many.
struct Error {
  double sum = 0;
  double squares = 0;
  double magnitude = 0;
  double terms = 0;

  void add(double term, double error, double independent_squares) {
    sum += error;
    squares += independent_squares;
    magnitude += std::fabs(term);
    terms += 1;
  }
};

class RoundingBounds {
 public:
  RoundingBounds(const Call& call, const Expected& expected)
      : call_(call),
        expected_(expected),
        sizes_(call.forward.problem.sizes),
        scale_(call.forward.problem.scale),
        stored_(format_of(call.forward.problem.dtype)),
        wide_(format_of(call.is_double ? DType::kFloat64 : DType::kFloat32)),
        is_half_(element_size(call.forward.problem.dtype) == 2),
        key_errors_(list(sizes_.batch * sizes_.heads_kv * sizes_.seq_k, sizes_.dim_qk)),
        value_errors_(list(sizes_.batch * sizes_.heads_kv * sizes_.seq_k, sizes_.dim_v)) {}

  Bounds compute() {
    for (std::int64_t b = 0; b < sizes_.batch; ++b) {
      for (std::int64_t h = 0; h < sizes_.heads_q; ++h) {
        for (std::int64_t i = 0; i < sizes_.seq_q; ++i) add_row(b, h, i);
      }
    }
    for (std::size_t n = 0; n < key_errors_.size(); ++n) {
      bounds_.grad_key.push_back(finish(key_errors_[n], expected_.grad_key[n]));
      bounds_.grad_value.push_back(finish(value_errors_[n], expected_.grad_value[n]));
    }
    return bounds_;
  }

 private:
  using Errors = std::vector<Error>;

  static std::vector<Errors> list(std::int64_t n, std::int64_t d) {
    return {static_cast<std::size_t>(n), Errors(static_cast<std::size_t>(d))};
  }

  double of_sum(double terms) const { return (1 + std::sqrt(terms)) * wide_.unit; }

  /// Rounding of a weight or gradient before it is multiplied.
  double of_weight(double x) const { return is_half_ ? stored_.rounding(x) : 0; }

  Row finish(const Errors& errors, const Row& values) const {
    constexpr double kZ = 7;
    Row bounds;
    for (std::size_t n = 0; n < errors.size(); ++n) {
      const Error& e = errors[n];
      bounds.push_back(e.sum + of_sum(e.terms) * e.magnitude + kZ * std::sqrt(e.squares) +
                       stored_.rounding(values[n]));
    }
    return bounds;
  }

  void add_row(std::int64_t b, std::int64_t h, std::int64_t i) {
    const Tensor* mask = call_.mask ? &*call_.mask : nullptr;
    const double w = wide_.unit;
    const std::int64_t kv = h / (sizes_.heads_q / sizes_.heads_kv);
    const auto row = static_cast<std::size_t>((b * sizes_.heads_q + h) * sizes_.seq_q + i);
    const auto keys = core::visible_keys(call_.forward.problem.band, i, sizes_.seq_k);
    const double lse = expected_.logsumexp[row];

    std::vector<std::int64_t> seen;
    Row weight;        // P
    Row weight_error;  // relative
    double lse_error = 0;
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const double bias = mask_value(mask, b, h, i, j);
      if (bias == -kInf) continue;
      double score = bias;
      double magnitude = 0;
      for (std::int64_t d = 0; d < sizes_.dim_qk; ++d) {
        const double term = scale_ * call_.q.get(b, h, i, d) * call_.k.get(b, kv, j, d);
        score += term;
        magnitude += std::fabs(term);
      }
      const double error = of_sum(static_cast<double>(sizes_.dim_qk)) * magnitude +
                           2 * w * (std::fabs(score) + std::fabs(bias));
      seen.push_back(j);
      weight.push_back(std::exp(score - lse));
      // Two roundings of the exponent, two of LSE, and those of 2^x and of the factor.
      weight_error.push_back(error + 2 * w * (std::fabs(score) + std::fabs(lse) + 2));
      lse_error += weight.back() * error;
    }
    const auto count = static_cast<double>(seen.size());
    lse_error += of_sum(count) + 2 * w;
    bounds_.logsumexp.push_back(seen.empty() ? 0 : lse_error + 2 * w * std::fabs(lse));
    for (double& x : weight_error) x += lse_error;

    Errors output(static_cast<std::size_t>(sizes_.dim_v));
    Row grad_magnitude(seen.size());  // sum of |dO V|
    Row weight_grad(seen.size());     // dP
    for (std::size_t n = 0; n < seen.size(); ++n) {
      for (std::size_t d = 0; d < output.size(); ++d) {
        const double v = call_.v.get(b, kv, seen[n], static_cast<std::int64_t>(d));
        const double g = call_.grad.get(b, h, i, static_cast<std::int64_t>(d));
        weight_grad[n] += g * v;
        grad_magnitude[n] += std::fabs(g * v);
        output[d].add(weight[n] * v, weight[n] * weight_error[n] * std::fabs(v),
                      square(of_weight(weight[n]) * v));
      }
    }
    bounds_.output.push_back(finish(output, expected_.output[row]));

    // delta = sum of dO O - dLSE, the same for the whole row.
    const auto dim_v = static_cast<double>(sizes_.dim_v);
    double delta = call_.grad_lse.empty() ? 0 : -call_.grad_lse[row];
    double delta_error = w * std::fabs(delta);
    double delta_squares = 0;
    for (std::size_t d = 0; d < output.size(); ++d) {
      const double g = call_.grad.get(b, h, i, static_cast<std::int64_t>(d));
      const double o = expected_.output[row][d];
      const Error& e = output[d];
      delta += g * o;
      delta_error +=
          of_sum(dim_v) * std::fabs(g * o) + std::fabs(g) * (e.sum + of_sum(e.terms) * e.magnitude);
      delta_squares += square(g * stored_.rounding(o));
    }
    for (std::size_t n = 0; n < seen.size(); ++n) {
      delta_squares += square(of_weight(weight[n]) * weight_grad[n]);
    }

    Errors query(static_cast<std::size_t>(sizes_.dim_qk));
    Row mean_key(query.size());  // sum of P K
    for (std::size_t n = 0; n < seen.size(); ++n) {
      const double p = weight[n];
      const double ds = p * (weight_grad[n] - delta);
      const double ds_error = std::fabs(ds) * weight_error[n] +
                              p * (of_sum(dim_v) * grad_magnitude[n] + delta_error +
                                   2 * w * (std::fabs(weight_grad[n]) + std::fabs(delta)));
      const auto key =
          static_cast<std::size_t>((b * sizes_.heads_kv + kv) * sizes_.seq_k + seen[n]);
      for (std::size_t d = 0; d < query.size(); ++d) {
        const double k = scale_ * call_.k.get(b, kv, seen[n], static_cast<std::int64_t>(d));
        const double q = scale_ * call_.q.get(b, h, i, static_cast<std::int64_t>(d));
        query[d].add(ds * k, ds_error * std::fabs(k), square(of_weight(ds) * k));
        key_errors_[key][d].add(ds * q, ds_error * std::fabs(q),
                                square(of_weight(ds) * q) + delta_squares * square(p * q));
        mean_key[d] += p * k;
      }
      for (std::size_t d = 0; d < output.size(); ++d) {
        const double g = call_.grad.get(b, h, i, static_cast<std::int64_t>(d));
        value_errors_[key][d].add(p * g, p * weight_error[n] * std::fabs(g),
                                  square(of_weight(p) * g));
      }
    }
    for (std::size_t d = 0; d < query.size(); ++d) {
      query[d].squares += delta_squares * square(mean_key[d]);
    }
    bounds_.grad_query.push_back(finish(query, expected_.grad_query[row]));
  }

  const Call& call_;
  const Expected& expected_;
  core::Sizes sizes_;
  double scale_;
  Format stored_;
  Format wide_;
  bool is_half_;
  std::vector<Errors> key_errors_;
  std::vector<Errors> value_errors_;
  Bounds bounds_;
};

}  // namespace

Bounds rounding_bounds(const Call& call, const Expected& expected) {
  return RoundingBounds(call, expected).compute();
}

}  // namespace fused_attention::test
