// The CPU kernels alone, per ISA: whole calls, and the pieces they are made of. One thread, CPU
// time. `share` is of the FMA peak of the ISA's vectors, measured before and after each benchmark.
// Torch-free; run with --benchmark_filter=avx2/kernel and the like.
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "bf16_dot.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "cpu/run.h"
#include "fma_peak.h"
#include "kernel_call.h"
#include "micro_kernels.h"

namespace {

using namespace fused_attention;
using bench::Call;
using bench::Mask;
using bench::Shape;
using core::DType;

constexpr Shape kShapes[] = {
    {"b4_h8_s128_d64", {4, 8, 8, 128, 128, 64, 64}},
    {"b2_h12_s1024_d64_causal", {2, 12, 12, 1024, 1024, 64, 64}, true},
    {"b1_h9_3_s1024_d64_causal", {1, 9, 3, 1024, 1024, 64, 64}, true},
    {"b1_h8_s2048_d64", {1, 8, 8, 2048, 2048, 64, 64}},
    {"b1_h16_2_s2048_d128_causal", {1, 16, 2, 2048, 2048, 128, 128}, true},
    {"b8_h6_2_s256_d64_causal", {8, 6, 2, 256, 256, 64, 64}, true},
    // Beside b1_h8_s1024_d64: what a mask costs.
    {"b1_h8_s1024_d64_mask", {1, 8, 8, 1024, 1024, 64, 64}, false, Mask::kBool},
    {"b1_h8_s1024_d64_float_mask", {1, 8, 8, 1024, 1024, 64, 64}, false, Mask::kFloat},
    {"b1_h8_s1024_d64_key_mask", {1, 8, 8, 1024, 1024, 64, 64}, false, Mask::kBoolOfKeys},
    // Beside the rounder sizes above: what a ragged end costs.
    {"b2_h12_s1000_d64_causal", {2, 12, 12, 1000, 1000, 64, 64}, true},
    {"b2_h8_s333_d64", {2, 8, 8, 333, 333, 64, 64}},
    {"b1_h8_s1024_d40", {1, 8, 8, 1024, 1024, 40, 40}},
    {"b1_h8_s1024_d64", {1, 8, 8, 1024, 1024, 64, 64}},
    {"b1_h8_s1024_d80", {1, 8, 8, 1024, 1024, 80, 80}},
    {"b1_h8_s1024_d96", {1, 8, 8, 1024, 1024, 96, 96}},
    {"b1_h8_s1024_d192_dv128", {1, 8, 8, 1024, 1024, 192, 128}},
    {"b1_h1_s2048_d64", {1, 1, 1, 2048, 2048, 64, 64}},
    {"b1_h8_sq1_sk4096_d64", {1, 8, 8, 1, 4096, 64, 64}},
    {"b1_h8_sq2_sk4096_d64", {1, 8, 8, 2, 4096, 64, 64}},
    {"b1_h8_sq4_sk4096_d64", {1, 8, 8, 4, 4096, 64, 64}},
    {"b1_h8_sq8_sk4096_d64", {1, 8, 8, 8, 4096, 64, 64}},
    {"b1_h8_sq16_sk4096_d64", {1, 8, 8, 16, 4096, 64, 64}},
    {"b1_h8_sq32_sk4096_d64", {1, 8, 8, 32, 4096, 64, 64}},
    {"b1_h8_sq64_sk4096_d64", {1, 8, 8, 64, 4096, 64, 64}},
    {"b1_h32_8_decode4096_d128", {1, 32, 8, 1, 4096, 128, 128}},
    {"b32_h4_s32_d32", {32, 4, 4, 32, 32, 32, 32}},
    {"b1_h2_s16_d16", {1, 2, 2, 16, 16, 16, 16}},
};

constexpr std::pair<DType, const char*> kDtypes[] = {
    {DType::kFloat32, "fp32"}, {DType::kBFloat16, "bf16"}, {DType::kFloat16, "fp16"}};

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// What a share refers to: fp32 multiply-adds with vectors of so many bytes, or those of bf16
/// pairs.
struct Ceiling {
  int vector_bytes;
  bool pairs;
};

/// The better of a few tries: nothing makes a multiply-add faster than it is.
double peak(Ceiling ceiling) {
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    best =
        std::max(best, ceiling.pairs ? bench::bf16_dot_rate(5e-4, thread_seconds)
                                     : bench::fma_rate(ceiling.vector_bytes, 5e-4, thread_seconds));
  }
  return best;
}

/// Runs `work` as often as it is asked to, and sets its rate against the peak.
template <class Work>
void measure_flops(benchmark::State& state, double flops, Ceiling ceiling, const Work& work) {
  const double before = peak(ceiling);
  const double start = thread_seconds();
  for (auto _ : state) {
    work();
    benchmark::ClobberMemory();
  }
  const double rate = flops * static_cast<double>(state.iterations()) / (thread_seconds() - start);
  state.counters["GFLOP/s"] = rate * 1e-9;
  state.counters["share"] = 2 * rate / (before + peak(ceiling));
}

void run_call(benchmark::State& state, const std::string& isa, int vector_bytes, const Shape& shape,
              DType dtype, bool backward) {
  cpu::set_isa(isa);
  Call call(shape, dtype);
  cpu::forward(call.forward);
  const Ceiling ceiling{vector_bytes, isa == "avx512_bf16" && dtype == DType::kBFloat16};
  measure_flops(state, bench::flops(shape, backward), ceiling, [&] {
    if (backward) {
      cpu::backward(call.backward);
    } else {
      cpu::forward(call.forward);
    }
  });
  const cpu::KernelTable& kernels = cpu::active_table();
  std::int64_t bytes = kernels.plan_forward(call.forward, 1).scratch_bytes;
  if (backward) {
    const cpu::BackwardPlan plan = kernels.plan_backward(call.backward, 1);
    bytes = plan.scratch_bytes + plan.accumulator_bytes;
  }
  state.counters["scratch_KiB"] = static_cast<double>(bytes) / 1024;
}

void run_piece(benchmark::State& state, const cpu::MicroKernel& kernel, Ceiling ceiling) {
  if (kernel.flops > 0) {
    measure_flops(state, kernel.flops, ceiling, kernel.run);
    return;
  }
  for (auto _ : state) kernel.run();
  state.counters["elements/s"] =
      benchmark::Counter(kernel.elements, benchmark::Counter::kIsIterationInvariantRate);
}

void register_calls(const std::string& isa, int vector_bytes) {
  for (const auto& [dtype, suffix] : kDtypes) {
    for (const Shape& shape : kShapes) {
      for (const bool backward : {false, true}) {
        const std::string name =
            isa + "/" + suffix + "/" + shape.name + (backward ? "/backward" : "/forward");
        benchmark::RegisterBenchmark(name.c_str(), [isa, vector_bytes, &shape, dtype = dtype,
                                                    backward](benchmark::State& state) {
          run_call(state, isa, vector_bytes, shape, dtype, backward);
        })->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

void register_pieces(const std::string& isa, const cpu::MicroKernels& kernels) {
  const Ceiling ceiling{kernels.vector_bytes, kernels.pairs};
  for (int i = 0; i < kernels.count; ++i) {
    const cpu::MicroKernel& kernel = kernels.first[i];
    benchmark::RegisterBenchmark(
        (isa + "/kernel/" + kernel.name).c_str(),
        [&kernel, ceiling](benchmark::State& state) { run_piece(state, kernel, ceiling); });
  }
}

/// The same multiply-adds as fp32 FMAs and as dot products of bf16 pairs: which of avx512 and
/// avx512_bf16 is the default of a CPU (isa.cpp).
void register_bf16_dot() {
  if (!bench::has_bf16_dot()) {
    std::fprintf(stderr, "skipped: bf16_dot, this CPU has no avx512_bf16\n");
    return;
  }
  static const volatile float factors[2] = {0.75f, 0.125f};
  static float sink;
  benchmark::RegisterBenchmark("bf16_dot/fp32_fma", [](benchmark::State& state) {
    const double flops = bench::fma_chunk_64(factors, &sink);
    measure_flops(state, flops, {64, false}, [] { bench::fma_chunk_64(factors, &sink); });
  });
  benchmark::RegisterBenchmark("bf16_dot/vdpbf16ps", [](benchmark::State& state) {
    const double flops = bench::bf16_dot_chunk(&sink);
    measure_flops(state, flops, {64, false}, [] { bench::bf16_dot_chunk(&sink); });
  });
}

cpu::MicroKernels micro_kernels(const std::string& isa) {
#if defined(FUSED_ATTENTION_HAS_AVX512_BF16)
  if (isa == "avx512_bf16") return cpu::avx512_bf16::micro_kernels();
#endif
#if defined(FUSED_ATTENTION_HAS_AVX512)
  if (isa == "avx512") return cpu::avx512::micro_kernels();
#endif
#if defined(FUSED_ATTENTION_HAS_AVX2)
  if (isa == "avx2") return cpu::avx2::micro_kernels();
#endif
  return cpu::generic::micro_kernels();
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  for (const std::string& isa : cpu::supported_isas()) {
    const cpu::MicroKernels kernels = micro_kernels(isa);
    register_pieces(isa, kernels);
    register_calls(isa, kernels.vector_bytes);
  }
  register_bf16_dot();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
