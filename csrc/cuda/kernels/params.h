// What the host computes once for all blocks of a launch.
#pragma once

#include <cstdint>

#include "../../core/problem.h"
#include "../../core/schedule.h"

namespace fused_attention::cuda {

struct ForwardParams {
  core::ForwardProblem call;
  core::RowSchedule rows;
  int value_slices = 1;      // blocks that share the columns of V
  int chunks = 1;            // blocks that share the keys, and leave it to a kernel to merge them
  void* partials = nullptr;  // room for what they leave: see partials.h
  float scale = 1;           // of the scores
  float scale_log2 = 1;      // scale * log2(e)
  bool query_in_chunks = true;  // rows of 16-byte chunks: see is_in_chunks
  bool key_in_chunks = true;
  bool value_in_chunks = true;
  bool output_in_chunks = true;
};

/// What rebuilds the weights of a row: P = exp(s - shift) factor, with the exponent as its policy
/// has it, and delta = rowsum(dO O) - dLSE. Kernels of fp64 keep four doubles, in the same order.
struct alignas(16) RowStatistics {
  float shift;
  float factor;
  float delta;
  std::int32_t position;  // in shared memory; relative to what the kernel says
};

struct BackwardParams {
  core::BackwardProblem call;
  core::RowSchedule rows;       // of dQ
  void* statistics = nullptr;   // of (B, Hq, Sq) rows: the dQ kernel writes, the others read
  std::int64_t key_blocks = 0;  // of dK and dV, for each (b, key-value head)
  int slices = 1;               // blocks that share the columns of a gradient
  float scale = 1;
  float scale_log2 = 1;
  bool in_chunks = true;  // all operands; plain kernels rely on it
};

}  // namespace fused_attention::cuda
