#include "attention_outputs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/SmallVector.h>

#include <numeric>

#include "attention_check.h"

namespace fused_attention {
namespace {

using at::Tensor;
using c10::SymInt;

/// True when a dimension of stride `a` must lie outside one of stride `b`. Unknown (unbacked) is
/// false, which keeps the logical order.
bool lies_outside(const SymInt& a, const SymInt& b) {
  const bool a_is_expanded = TORCH_GUARD_OR_FALSE(a.sym_eq(0));
  const bool b_is_expanded = TORCH_GUARD_OR_FALSE(b.sym_eq(0));
  if (a_is_expanded || b_is_expanded) {
    return a_is_expanded && !b_is_expanded;
  }
  return TORCH_GUARD_OR_FALSE(a.sym_gt(b));
}

}  // namespace

Tensor empty_in_order_of(const Tensor& like, c10::SymIntArrayRef sizes) {
  const auto rank = static_cast<std::int64_t>(sizes.size());
  const auto strides = like.sym_strides();
  c10::SmallVector<std::int64_t, 5> order(rank);
  std::iota(order.begin(), order.end(), 0);
  // Insertion sort: stable, and sound even where unknown sizes make the comparison inconsistent.
  for (std::int64_t i = 1; i < rank; ++i) {
    for (std::int64_t j = i; j > 0 && lies_outside(strides[order[j]], strides[order[j - 1]]); --j) {
      std::swap(order[j], order[j - 1]);
    }
  }
  c10::SmallVector<SymInt, 5> dense(rank, SymInt(1));
  SymInt step = 1;
  for (std::int64_t i = rank - 1; i >= 0; --i) {
    dense[order[i]] = step;
    step *= sizes[order[i]].max(1);
  }
  return at::empty_strided_symint(sizes, dense, like.options());
}

ForwardResult empty_forward_result(const ForwardTensors& t) {
  const std::array<SymInt, 4> sizes = {t.query.sym_size(0), t.query.sym_size(1),
                                       t.query.sym_size(2), t.value.sym_size(3)};
  const auto options = t.query.options();
  return {empty_in_order_of(t.query, sizes),
          at::empty_symint(c10::SymIntArrayRef(sizes).slice(0, 3),
                           options.dtype(accumulation_type(t.query.scalar_type()))),
          at::empty({0}, options.dtype(at::kLong))};
}

BackwardResult empty_backward_result(const ForwardTensors& t, const GradInputMask& wanted) {
  const auto gradient = [&](bool is_wanted, const Tensor& input) {
    return is_wanted ? empty_in_order_of(input, input.sym_sizes())
                     : at::empty({0}, t.query.options());
  };
  return {gradient(wanted[0], t.query), gradient(wanted[1], t.key), gradient(wanted[2], t.value),
          gradient(false, t.query),     gradient(false, t.query),   gradient(false, t.query)};
}

}  // namespace fused_attention
