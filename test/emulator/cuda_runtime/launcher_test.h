// Calls of csrc/cuda/run.h whose tensors do not exist: what they ask of CUDA's runtime is recorded,
// and no kernel runs.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/mask.h"
#include "cuda/run.h"
#include "emulator/cuda_runtime/runtime.h"

namespace fused_attention::test {

using core::DType;

class LauncherTest : public testing::Test {
 protected:
  LauncherTest() { runtime = CudaRuntime(); }
  ~LauncherTest() override { runtime = CudaRuntime(); }

  /// Contiguous tensors, at an address that nobody may follow.
  static core::BackwardProblem problem_of(DType dtype, const core::Sizes& s) {
    alignas(16) static char memory[16];
    const auto operand = [&](std::int64_t heads, std::int64_t seq, std::int64_t dim) {
      return core::Operand{memory, heads * seq * dim, seq * dim, dim, 1};
    };
    const auto view = [&](std::int64_t heads, std::int64_t seq, std::int64_t dim) {
      return core::ConstOperand{memory, heads * seq * dim, seq * dim, dim, 1};
    };
    core::BackwardProblem call;
    call.problem.sizes = s;
    call.problem.dtype = dtype;
    call.problem.scale = 0.125;
    call.problem.band = core::make_band(false, 0, -1, -1, s.seq_q, s.seq_k);
    call.problem.query = view(s.heads_q, s.seq_q, s.dim_qk);
    call.problem.key = view(s.heads_kv, s.seq_k, s.dim_qk);
    call.problem.value = view(s.heads_kv, s.seq_k, s.dim_v);
    call.output = view(s.heads_q, s.seq_q, s.dim_v);
    call.grad_output = view(s.heads_q, s.seq_q, s.dim_v);
    call.logsumexp = memory;
    call.grad_query = operand(s.heads_q, s.seq_q, s.dim_qk);
    call.grad_key = operand(s.heads_kv, s.seq_k, s.dim_qk);
    call.grad_value = operand(s.heads_kv, s.seq_k, s.dim_v);
    return call;
  }
  static bool forward(const core::BackwardProblem& problem, int chunks = 1) {
    core::ForwardProblem call;
    call.problem = problem.problem;
    const core::ConstOperand& x = problem.output;
    call.output = {problem.grad_query.data, x.stride_b, x.stride_h, x.stride_s, x.stride_d};
    static char partials[16];
    return cuda::forward(call, {chunks, partials}, stream());
  }
  static bool backward(const core::BackwardProblem& problem) {
    static char statistics[16];
    return cuda::backward(problem, statistics, stream());
  }
  static CUstream_st* stream() {
    static char stream;
    return reinterpret_cast<CUstream_st*>(&stream);
  }

  /// A launch of the kernel C in so many blocks.
  template <class C>
  static void expect_launch(const KernelEvent& launch, std::int64_t blocks) {
    EXPECT_EQ(std::int64_t{launch.grid.x} * launch.grid.y, blocks) << launch.kernel;
    EXPECT_EQ(launch.grid.z, 1U);
    EXPECT_EQ(launch.block.x, static_cast<unsigned>(C::kThreads)) << launch.kernel;
    EXPECT_EQ(launch.block.y * launch.block.z, 1U);
    EXPECT_EQ(launch.shared_bytes, C::kSharedBytes) << launch.kernel;
    EXPECT_EQ(launch.stream, stream()) << launch.kernel;
  }
  static void expect_named(const KernelEvent& launch, const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      EXPECT_NE(launch.kernel.find(word), std::string::npos) << word << " in " << launch.kernel;
    }
  }

  CudaRuntime& runtime = CudaRuntime::instance();
};

}  // namespace fused_attention::test
