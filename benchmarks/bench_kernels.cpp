// The CPU kernels alone, per ISA: reference shapes in GFLOP/s. bench_attention.py sets such rates
// against the FMA peak. Torch-free; run with --benchmark_filter=avx2 and the like.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/mask.h"
#include "cpu/isa.h"
#include "cpu/run.h"

namespace {

using namespace fused_attention;

struct Shape {
  const char* name;
  core::Sizes sizes;
  bool causal;
  bool mask;
};

constexpr Shape kShapes[] = {
    {"b4_h8_s128_d64", {4, 8, 8, 128, 128, 64, 64}, false, false},
    {"b2_h12_s1024_d64_causal", {2, 12, 12, 1024, 1024, 64, 64}, true, false},
    {"b1_h9_3_s1024_d64_causal", {1, 9, 3, 1024, 1024, 64, 64}, true, false},
    {"b1_h8_s2048_d64", {1, 8, 8, 2048, 2048, 64, 64}, false, false},
    {"b1_h16_2_s2048_d128_causal", {1, 16, 2, 2048, 2048, 128, 128}, true, false},
    {"b8_h6_2_s256_d64_causal", {8, 6, 2, 256, 256, 64, 64}, true, false},
    {"b1_h8_s1024_d64_mask", {1, 8, 8, 1024, 1024, 64, 64}, false, true},
    {"b32_h4_s32_d32", {32, 4, 4, 32, 32, 32, 32}, false, false},
    {"b1_h32_8_decode4096_d128", {1, 32, 8, 1, 4096, 128, 128}, false, false},
};

/// Tensors of one call, contiguous, with arbitrary small values.
struct Call {
  std::vector<std::vector<unsigned char>> memory;
  core::ForwardProblem forward;
  core::BackwardProblem backward;

  void* allocate(std::int64_t elements, core::DType dtype) {
    const std::int64_t size = dtype == core::DType::kFloat32 ? 4
                              : dtype == core::DType::kBool  ? 1
                                                             : 2;
    memory.emplace_back(static_cast<std::size_t>(elements * size));
    unsigned char* data = memory.back().data();
    for (std::int64_t i = 0; i < elements; ++i) {
      const float x = static_cast<float>((i * 2654435761U >> 7) % 1000) / 500 - 1;
      std::uint32_t bits;
      std::memcpy(&bits, &x, 4);
      const auto high = static_cast<std::uint16_t>(bits >> 16);
      if (size == 4) std::memcpy(data + i * 4, &x, 4);
      if (size == 2) std::memcpy(data + i * 2, &high, 2);
      if (size == 1) data[i] = x > -0.5;
    }
    return data;
  }

  Call(const Shape& shape, core::DType dtype) {
    const core::Sizes& s = shape.sizes;
    const auto tensor = [&](std::int64_t heads, std::int64_t seq, std::int64_t dim) {
      return core::Operand{allocate(s.batch * heads * seq * dim, dtype), heads * seq * dim,
                           seq * dim, dim, 1};
    };
    const auto input = [&](const core::Operand& x) {
      return core::ConstOperand{x.data, x.stride_b, x.stride_h, x.stride_s, x.stride_d};
    };
    core::Problem p;
    p.sizes = s;
    p.dtype = dtype;
    p.scale = 0.125;
    p.band = core::make_band(shape.causal, 0, -1, -1, s.seq_q, s.seq_k);
    if (shape.mask) {
      p.mask = {
          allocate(s.seq_q * s.seq_k, core::DType::kBool), core::DType::kBool, 0, 0, s.seq_k, 1};
    }
    p.query = input(tensor(s.heads_q, s.seq_q, s.dim_qk));
    p.key = input(tensor(s.heads_kv, s.seq_k, s.dim_qk));
    p.value = input(tensor(s.heads_kv, s.seq_k, s.dim_v));
    const core::Operand out = tensor(s.heads_q, s.seq_q, s.dim_v);
    void* lse = allocate(s.batch * s.heads_q * s.seq_q, core::DType::kFloat32);
    forward = {p, out, lse};
    backward.problem = p;
    backward.output = input(out);
    backward.grad_output = input(tensor(s.heads_q, s.seq_q, s.dim_v));
    backward.logsumexp = lse;
    backward.grad_query = tensor(s.heads_q, s.seq_q, s.dim_qk);
    backward.grad_key = tensor(s.heads_kv, s.seq_k, s.dim_qk);
    backward.grad_value = tensor(s.heads_kv, s.seq_k, s.dim_v);
  }
};

/// Multiply-adds of visible pairs, as floating-point operations.
double flops(const Shape& shape, bool backward) {
  const core::Sizes& s = shape.sizes;
  const core::Band band = core::make_band(shape.causal, 0, -1, -1, s.seq_q, s.seq_k);
  double pairs = 0;
  for (std::int64_t i = 0; i < s.seq_q; ++i) {
    const auto keys = core::visible_keys(band, i, s.seq_k);
    pairs += static_cast<double>(core::max64(0, keys.end - keys.begin));
  }
  const auto dims = static_cast<double>(backward ? 3 * s.dim_qk + 2 * s.dim_v : s.dim_qk + s.dim_v);
  return 2 * static_cast<double>(s.batch * s.heads_q) * pairs * dims;
}

void run(benchmark::State& state, const std::string& isa, const Shape& shape, core::DType dtype,
         bool backward) {
  cpu::set_isa(isa);
  Call call(shape, dtype);
  cpu::forward(call.forward);
  for (auto _ : state) {
    if (backward) {
      cpu::backward(call.backward);
    } else {
      cpu::forward(call.forward);
    }
    benchmark::ClobberMemory();
  }
  state.counters["GFLOP/s"] = benchmark::Counter(flops(shape, backward) * 1e-9,
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

int main(int argc, char** argv) {
  for (const std::string& isa : cpu::supported_isas()) {
    for (const auto& [dtype, suffix] :
         {std::pair{core::DType::kFloat32, "fp32"}, {core::DType::kBFloat16, "bf16"}}) {
      for (const Shape& shape : kShapes) {
        for (const bool backward : {false, true}) {
          const std::string name =
              isa + "/" + suffix + "/" + shape.name + (backward ? "/backward" : "/forward");
          benchmark::RegisterBenchmark(
              name.c_str(),
              [isa, &shape, dtype = dtype, backward](benchmark::State& state) {
                run(state, isa, shape, dtype, backward);
              })
              ->UseRealTime()
              ->Unit(benchmark::kMicrosecond);
        }
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
