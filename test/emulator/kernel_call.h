// Runs the CUDA kernels for a test case in the emulator, through the host's own choice of kernel
// and grid, and compares with the formula.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "cpp/cpu/call.h"
#include "cuda/tile_config.h"
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

/// Bound of the relative error of a sum of n equal products: each is rounded for a tensor core once
/// and the result once, by half a unit of the type, and every addition by one of the computing
/// type.
inline double equal_sum_error(DType dtype, double n) {
  const bool is_half = dtype == DType::kBFloat16 || dtype == DType::kFloat16;
  const double half_unit = !is_half ? 0 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
  return 2 * half_unit + n * (dtype == DType::kFloat64 ? 0x1p-53 : 0x1p-24);
}

/// Elements of q and k for scores of billions. No powers of two: what fp32 rounds of the scores, in
/// base 2, is more than the exponent of any number.
inline double billions(DType dtype) { return dtype == DType::kFloat16 ? 0x1.3p15 : 0x1.3p20; }

/// Fills `call` so that each row weighs either the first or the second half of its keys, equally:
/// rows of either sign by turns, keys that are large and half as large, values of 1 and 0 by turns.
inline void fill_with_billions(Call& call) {
  const double large = billions(call.forward.problem.dtype);
  const std::int64_t half = call.forward.problem.sizes.seq_k / 2;
  call.q.fill([=](auto, auto, auto i, auto) { return i % 2 == 0 ? large : -large; });
  call.k.fill([=](auto, auto, auto j, auto) { return j < half ? large : large / 2; });
  call.v.fill([](auto, auto, auto j, auto) { return j % 2 == 0 ? 1.0 : 0.0; });
}

/// Shared memory of a block on the GPU that most tests run on. Some have cuda::kLeastSharedBytes.
constexpr int kSharedBytes = 163 << 10;

/// Runs the forward kernels of a case, as on a device with so many multiprocessors and so much
/// shared memory. Only the elements of its tensors may be touched.
emulator::Report run_forward(Call& call, std::uint64_t seed = 0, int multiprocessors = 1,
                             int shared_bytes = kSharedBytes);

/// Runs the backward kernels of a case whose forward pass has run.
emulator::Report run_backward(Call& call, std::uint64_t seed = 0, int shared_bytes = kSharedBytes);

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

/// Holds what the forward kernels left against the formula.
void expect_forward(const Call& call, const Expected& expected);

/// The same for the backward kernels.
void expect_backward(const Call& call, const Expected& expected);

}  // namespace fused_attention::test
