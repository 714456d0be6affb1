// The kernels of one ISA and their table; compiled once per ISA (isa.h).
#include "../kernel_table.h"
#include "backward.h"
#include "forward.h"

FUSED_ATTENTION_BEGIN_ISA_NAMESPACE

template <class T>
using Wide = Config<T, kWideVectors, kWideBroadcast, PlainScore>;
template <class T>
using Narrow = Config<T, 1, kNarrowBroadcast, PlainScore>;

/// Calls f with the configuration of a variant: 0 wide, 1 narrow, + 2 for fp64.
template <class F>
auto visit(int variant, F f) {
  switch (variant) {
    case 0:
      return f(Wide<float>{});
    case 1:
      return f(Narrow<float>{});
    case 2:
      return f(Wide<double>{});
    default:
      return f(Narrow<double>{});
  }
}

/// Narrow panels where a wide one would be mostly empty.
int choose_variant(const core::Problem& problem) {
  const bool is_double = problem.dtype == core::DType::kFloat64;
  const std::int64_t rows = core::group_size(problem.sizes) * problem.sizes.seq_q;
  const std::int64_t narrow = is_double ? Narrow<double>::kRows : Narrow<float>::kRows;
  return (rows <= narrow ? 1 : 0) + (is_double ? 2 : 0);
}

ForwardPlan plan_forward_any(const core::ForwardProblem& call, std::int64_t threads) {
  const int variant = choose_variant(call.problem);
  return visit(variant, [&](auto c) { return plan_forward<decltype(c)>(call, variant, threads); });
}

void forward_item_any(const core::ForwardProblem& call, const ForwardPlan& plan, std::int64_t item,
                      void* scratch, void* partial) {
  visit(plan.variant,
        [&](auto c) { forward_item<decltype(c)>(call, plan, item, scratch, partial); });
}

void forward_merge_any(const core::ForwardProblem& call, const ForwardPlan& plan, std::int64_t head,
                       std::int64_t block, void* scratch, const void* partial) {
  visit(plan.variant,
        [&](auto c) { forward_merge<decltype(c)>(call, plan, head, block, scratch, partial); });
}

BackwardPlan plan_backward_any(const core::BackwardProblem& call, std::int64_t threads) {
  const int variant = choose_variant(call.problem);
  return visit(variant, [&](auto c) { return plan_backward<decltype(c)>(call, variant, threads); });
}

void backward_item_any(const core::BackwardProblem& call, const BackwardPlan& plan,
                       BackwardItem item, const BackwardMemory& memory) {
  visit(plan.variant, [&](auto c) { backward_item<decltype(c)>(call, plan, item, memory); });
}

void backward_merge_any(const core::BackwardProblem& call, const BackwardPlan& plan,
                        BackwardItem item, const BackwardMemory& memory) {
  visit(plan.variant, [&](auto c) { backward_merge<decltype(c)>(call, plan, item, memory); });
}

FUSED_ATTENTION_END_ISA_NAMESPACE

namespace fused_attention::cpu::FUSED_ATTENTION_ISA_NAMESPACE {

#define FUSED_ATTENTION_STRING_(x) #x
#define FUSED_ATTENTION_STRING(x) FUSED_ATTENTION_STRING_(x)

const KernelTable& kernel_table() {
  static constexpr KernelTable table{FUSED_ATTENTION_STRING(FUSED_ATTENTION_ISA_NAMESPACE),
                                     plan_forward_any,
                                     forward_item_any,
                                     forward_merge_any,
                                     plan_backward_any,
                                     backward_item_any,
                                     backward_merge_any};
  return table;
}

}  // namespace fused_attention::cpu::FUSED_ATTENTION_ISA_NAMESPACE
