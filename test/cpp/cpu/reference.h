// The kernels' oracle: one formula in double over materialised scores, forward and backward, and
// the tensors of a test case. Torch-free.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/mask.h"
#include "core/problem.h"

namespace fused_attention::test {

constexpr double kInf = std::numeric_limits<double>::infinity();

inline std::size_t element_size(core::DType dtype) {
  switch (dtype) {
    case core::DType::kFloat64:
      return 8;
    case core::DType::kFloat32:
      return 4;
    case core::DType::kBool:
      return 1;
    default:
      return 2;
  }
}

inline float bits_to_float(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

/// Value of a half-precision number by its definition, independent of the kernels' conversions.
inline double half_value(std::uint16_t x) {
  const int exponent = (x >> 10) & 31;
  const int mantissa = x & 1023;
  const double sign = (x & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * kInf;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

/// Nearest half-precision number by search: slow, and obviously right.
inline std::uint16_t nearest_half(double x) {
  if (std::isnan(x)) return 0x7E00;
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(x);
  if (magnitude >= 65520) return sign | 0x7C00;
  std::uint16_t low = 0;
  std::uint16_t high = 0x7C00;
  while (high - low > 1) {
    const std::uint16_t middle = static_cast<std::uint16_t>((low + high) / 2);
    (half_value(middle) <= magnitude ? low : high) = middle;
  }
  if (high == 0x7C00) return sign | low;
  const double below = magnitude - half_value(low);
  const double above = half_value(high) - magnitude;
  const bool up = above < below || (above == below && (low & 1) != 0);
  return sign | (up ? high : low);
}

/// A (B, H, S, D) tensor in some memory order, inside a buffer filled with NaN.
struct Tensor {
  core::DType dtype;
  std::int64_t shape[4];
  std::int64_t stride[4];
  std::int64_t first;  // element of the buffer that the tensor begins at
  std::vector<unsigned char> memory;

  /// `order`: dims from outermost to innermost; `gap`: extra elements between rows; `step`: stride
  /// of the innermost dim; `margin`: elements of the buffer before the tensor and after it.
  Tensor(core::DType type, std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d,
         std::vector<int> order = {0, 1, 2, 3}, std::int64_t gap = 0, std::int64_t step = 1,
         std::int64_t margin = 0)
      : dtype(type), shape{b, h, s, d}, stride{}, first(margin) {
    std::int64_t size = step;
    for (int n = 3; n >= 0; --n) {
      const int dim = order[static_cast<std::size_t>(n)];
      stride[dim] = size;
      size *= shape[dim];
      size += n == 3 ? gap : 0;
    }
    memory.assign(static_cast<std::size_t>(size + 1 + 2 * margin) * element_size(type), 0xFF);
  }
  /// The same with one element for all indices of a dim, as torch's expand leaves it.
  Tensor expanded(int dim) const {
    Tensor x = *this;
    x.stride[dim] = 0;
    return x;
  }

  std::int64_t offset(std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d) const {
    return first + b * stride[0] + h * stride[1] + s * stride[2] + d * stride[3];
  }
  const unsigned char* data() const { return at(first); }
  unsigned char* data() { return at(first); }
  double get(std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d) const {
    const unsigned char* element = at(offset(b, h, s, d));
    std::uint16_t half;
    float single;
    double value;
    switch (dtype) {
      case core::DType::kFloat64:
        std::memcpy(&value, element, 8);
        return value;
      case core::DType::kFloat32:
        std::memcpy(&single, element, 4);
        return single;
      case core::DType::kBFloat16:
        std::memcpy(&half, element, 2);
        return bits_to_float(static_cast<std::uint32_t>(half) << 16);
      case core::DType::kFloat16:
        std::memcpy(&half, element, 2);
        return half_value(half);
      default:
        return *element;
    }
  }
  void set(std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d, double x) {
    unsigned char* element = at(offset(b, h, s, d));
    const float single = static_cast<float>(x);
    std::uint32_t bits;
    std::memcpy(&bits, &single, 4);
    std::uint16_t half;
    switch (dtype) {
      case core::DType::kFloat64:
        std::memcpy(element, &x, 8);
        return;
      case core::DType::kFloat32:
        std::memcpy(element, &single, 4);
        return;
      case core::DType::kBFloat16:  // truncation: test inputs need no rounding
        half = static_cast<std::uint16_t>((bits >> 16) | (std::isnan(single) ? 0x40U : 0U));
        std::memcpy(element, &half, 2);
        return;
      case core::DType::kFloat16:
        half = nearest_half(x);
        std::memcpy(element, &half, 2);
        return;
      default:
        *element = static_cast<unsigned char>(x);  // every byte but 0 means True
    }
  }
  template <class F>
  void fill(F f) {
    for (std::int64_t b = 0; b < shape[0]; ++b)
      for (std::int64_t h = 0; h < shape[1]; ++h)
        for (std::int64_t s = 0; s < shape[2]; ++s)
          for (std::int64_t d = 0; d < shape[3]; ++d) set(b, h, s, d, f(b, h, s, d));
  }
  void fill_normal(std::mt19937& random, double sigma = 1) {
    std::normal_distribution<double> normal(0, sigma);
    fill([&](auto...) { return normal(random); });
  }
  core::ConstOperand view() const {
    return {data(), shape[0] == 1 ? 0 : stride[0], stride[1], stride[2], stride[3]};
  }
  core::Operand output() { return {data(), stride[0], stride[1], stride[2], stride[3]}; }
  core::DenseMask mask() const {
    const auto broadcast = [&](int n) { return shape[n] == 1 ? 0 : stride[n]; };
    return {data(), dtype, broadcast(0), broadcast(1), broadcast(2), broadcast(3)};
  }

 private:
  const unsigned char* at(std::int64_t element) const {
    return memory.data() + static_cast<std::size_t>(element) * element_size(dtype);
  }
  unsigned char* at(std::int64_t element) {
    return memory.data() + static_cast<std::size_t>(element) * element_size(dtype);
  }
};

using Row = std::vector<double>;

/// The results of the formula, as (B, H, S, D) lists.
struct Expected {
  std::vector<Row> output, grad_query, grad_key, grad_value;
  Row logsumexp;
};

inline double mask_value(const Tensor* mask, std::int64_t b, std::int64_t h, std::int64_t i,
                         std::int64_t j) {
  if (mask == nullptr) return 0;
  const double x = mask->get(mask->shape[0] == 1 ? 0 : b, mask->shape[1] == 1 ? 0 : h,
                             mask->shape[2] == 1 ? 0 : i, mask->shape[3] == 1 ? 0 : j);
  return mask->dtype == core::DType::kBool ? (x != 0 ? 0 : -kInf) : x;
}

/// `grad_lse`: one value per (b, h, i), or empty.
inline Expected attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& grad,
                       const Row& grad_lse, const Tensor* mask, core::Band band, double scale) {
  const std::int64_t B = q.shape[0], Hq = q.shape[1], Sq = q.shape[2], D = q.shape[3];
  const std::int64_t Hkv = k.shape[1], Sk = k.shape[2], Dv = v.shape[3], G = Hq / Hkv;
  const auto list = [](std::int64_t n, std::int64_t d) {
    return std::vector<Row>(static_cast<std::size_t>(n), Row(static_cast<std::size_t>(d)));
  };
  Expected e{list(B * Hq * Sq, Dv),
             list(B * Hq * Sq, D),
             list(B * Hkv * Sk, D),
             list(B * Hkv * Sk, Dv),
             {}};
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t h = 0; h < Hq; ++h) {
      for (std::int64_t i = 0; i < Sq; ++i) {
        const auto row = static_cast<std::size_t>((b * Hq + h) * Sq + i);
        const auto keys = core::visible_keys(band, i, Sk);
        std::vector<std::int64_t> seen;
        Row s;
        double max = -kInf;
        for (std::int64_t j = keys.begin; j < keys.end; ++j) {
          const double bias = mask_value(mask, b, h, i, j);
          if (bias == -kInf) continue;
          double dot = 0;
          for (std::int64_t d = 0; d < D; ++d) dot += q.get(b, h, i, d) * k.get(b, h / G, j, d);
          seen.push_back(j);
          s.push_back(scale * dot + bias);
          max = std::fmax(max, s.back());
        }
        double sum = 0;
        for (double& x : s) sum += x = std::exp(x - max);
        e.logsumexp.push_back(seen.empty() ? -kInf : max + std::log(sum));
        double delta = grad_lse.empty() ? 0 : -grad_lse[row];
        Row dp(seen.size());
        for (std::size_t n = 0; n < seen.size(); ++n) {
          s[n] /= sum;
          for (std::int64_t d = 0; d < Dv; ++d) {
            const double x = v.get(b, h / G, seen[n], d);
            const double g = grad.get(b, h, i, d);
            e.output[row][static_cast<std::size_t>(d)] += s[n] * x;
            dp[n] += g * x;
          }
          delta += s[n] * dp[n];
        }
        for (std::size_t n = 0; n < seen.size(); ++n) {
          const double ds = s[n] * (dp[n] - delta);
          const auto key = static_cast<std::size_t>((b * Hkv + h / G) * Sk + seen[n]);
          for (std::int64_t d = 0; d < D; ++d) {
            const auto at = static_cast<std::size_t>(d);
            e.grad_query[row][at] += scale * ds * k.get(b, h / G, seen[n], d);
            e.grad_key[key][at] += scale * ds * q.get(b, h, i, d);
          }
          for (std::int64_t d = 0; d < Dv; ++d) {
            e.grad_value[key][static_cast<std::size_t>(d)] += s[n] * grad.get(b, h, i, d);
          }
        }
      }
    }
  }
  return e;
}

}  // namespace fused_attention::test
