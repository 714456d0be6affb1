// Runs a problem on the CPU: schedules it, and works through the items on torch's thread pool.
#pragma once

#include "../core/problem.h"

namespace fused_attention::cpu {

/// Writes every element of `output` and `logsumexp`. The problem must be valid (attention_check).
/// Empty sizes (B, Hq, Sq or Sk of 0) are legal. Results do not depend on the thread count, bit for
/// bit.
void forward(const core::ForwardProblem& problem);

/// Writes every element of the gradients whose `data` is not null. As `forward` otherwise.
void backward(const core::BackwardProblem& problem);

}  // namespace fused_attention::cpu
