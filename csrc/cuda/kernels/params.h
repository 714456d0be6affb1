// What the host computes once for all blocks of a launch.
#pragma once

#include <cstdint>

#include "../../core/problem.h"
#include "../../core/schedule.h"

namespace fused_attention::cuda {

struct ForwardParams {
  core::ForwardProblem call;
  core::RowSchedule rows;
  int value_slices = 1;         // blocks that share the columns of V
  float scale = 1;              // of the scores
  float scale_log2 = 1;         // scale * log2(e)
  bool query_in_chunks = true;  // rows of 16-byte chunks: see is_chunked
  bool key_in_chunks = true;
  bool value_in_chunks = true;
  bool output_in_chunks = true;
};

}  // namespace fused_attention::cuda
