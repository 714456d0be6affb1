// The table of avx512_bf16: products of bf16 in pairs where that pays, else the kernels of avx512.
#include "../kernel_table.h"
#include "backward.h"
#include "forward.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

using Paired = Config<BFloat16Pair, kWideVectors, kWideBroadcast, PlainScore>;

/// Beside the variants of avx512.
constexpr int kPairedVariant = 100;

/// Dots are scaled once they are summed: with a tiny scale, a score that is finite could overflow
/// before.
constexpr double kLeastScale = 0x1p-16;

bool is_paired(const core::Problem& problem) {
  const std::int64_t rows = core::group_size(problem.sizes) * problem.sizes.seq_q;
  return problem.dtype == core::DType::kBFloat16 && rows >= kLeastPairedRows &&
         (problem.scale >= kLeastScale || problem.scale <= -kLeastScale);
}

ForwardPlan plan_forward_any(const core::ForwardProblem& call, std::int64_t threads) {
  if (!is_paired(call.problem)) return avx512::kernel_table().plan_forward(call, threads);
  return plan_forward<Paired>(call, kPairedVariant, threads);
}

void forward_item_any(const core::ForwardProblem& call, const ForwardPlan& plan, std::int64_t item,
                      void* scratch, void* partial) {
  if (plan.variant != kPairedVariant) {
    return avx512::kernel_table().forward_item(call, plan, item, scratch, partial);
  }
  forward_item<Paired>(call, plan, item, scratch, partial);
}

void forward_merge_any(const core::ForwardProblem& call, const ForwardPlan& plan, std::int64_t head,
                       std::int64_t block, void* scratch, const void* partial) {
  if (plan.variant != kPairedVariant) {
    return avx512::kernel_table().forward_merge(call, plan, head, block, scratch, partial);
  }
  forward_merge<Paired>(call, plan, head, block, scratch, partial);
}

BackwardPlan plan_backward_any(const core::BackwardProblem& call, std::int64_t threads) {
  if (!is_paired(call.problem)) return avx512::kernel_table().plan_backward(call, threads);
  return plan_backward<Paired>(call, kPairedVariant, threads);
}

void backward_item_any(const core::BackwardProblem& call, const BackwardPlan& plan,
                       BackwardItem item, const BackwardMemory& memory) {
  if (plan.variant != kPairedVariant) {
    return avx512::kernel_table().backward_item(call, plan, item, memory);
  }
  backward_item<Paired>(call, plan, item, memory);
}

void backward_merge_any(const core::BackwardProblem& call, const BackwardPlan& plan,
                        BackwardItem item, const BackwardMemory& memory) {
  if (plan.variant != kPairedVariant) {
    return avx512::kernel_table().backward_merge(call, plan, item, memory);
  }
  backward_merge<Paired>(call, plan, item, memory);
}

FUSED_ATTENTION_END_ISA_NAMESPACE

namespace fused_attention::cpu::avx512_bf16 {

const KernelTable& kernel_table() {
  static constexpr KernelTable table{"avx512_bf16",     plan_forward_any,  forward_item_any,
                                     forward_merge_any, plan_backward_any, backward_item_any,
                                     backward_merge_any};
  return table;
}

}  // namespace fused_attention::cpu::avx512_bf16
