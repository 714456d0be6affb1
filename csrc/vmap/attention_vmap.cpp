// torch.func.vmap: the mapped dimension is folded into the batch. Any operand may be mapped or not,
// maps may be nested.
#include <ATen/core/Tensor.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include "../attention_check.h"
#include "../attention_op.h"
#include "../registration.h"

namespace at::functorch {
// From ATen/functorch/DynamicLayer.h, which needs a JSON library that torch does not ship.
TORCH_API const std::shared_ptr<bool>& getLifeHandleForLevel(int64_t level);
}  // namespace at::functorch

namespace fused_attention {
namespace {

using at::Tensor;
using at::functorch::maybeGetBatchedImpl;
using c10::SymInt;
using SymSizes = c10::SmallVector<SymInt, 6>;

bool has_level_above(std::int64_t level) {
  try {
    at::functorch::getLifeHandleForLevel(level + 1);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

/// The map that is being applied: its level, and the size of its dimension.
class Map {
 public:
  /// No value when none of the tensors is mapped at the current level.
  static std::optional<Map> of(std::initializer_list<const Tensor*> tensors) {
    std::int64_t level = -1;
    bool has_grad_wrapper = false;
    SymInt size = 0;
    for (const Tensor* tensor : tensors) {
      const auto* batched = maybeGetBatchedImpl(*tensor);
      if (batched != nullptr && batched->level() > level) {
        level = batched->level();
        size = batched->value().sym_size(batched->bdim());
      }
      has_grad_wrapper =
          has_grad_wrapper || tensor->key_set().has(c10::DispatchKey::FuncTorchGradWrapper);
    }
    // An operand wrapped by a grad transform above the highest map hides that the map in progress
    // is yet above, and that nobody takes part in it.
    if (level < 0 || (has_grad_wrapper && has_level_above(level))) {
      return std::nullopt;
    }
    return Map(level, std::move(size));
  }

  bool maps(const Tensor& tensor) const {
    const auto* batched = maybeGetBatchedImpl(tensor);
    return batched != nullptr && batched->level() == level_;
  }

  /// (B', ...) as (N*batch, ...), B' being 1 or `batch`.
  Tensor fold(const Tensor& tensor, const SymInt& batch) const {
    return fold_front(front(tensor), batch);
  }

  /// As `fold`, but what is the same for every example and batch entry stays of batch 1.
  Tensor fold_broadcast(const Tensor& tensor, const SymInt& batch) const {
    return !maps(tensor) && is_one(tensor.sym_size(0)) ? tensor : fold(tensor, batch);
  }

  std::optional<Tensor> fold_mask(const std::optional<Tensor>& mask, const SymInt& batch) const {
    if (!mask.has_value() || (!maps(*mask) && mask->dim() < 4)) {
      return mask;
    }
    if (!maps(*mask)) {
      return fold_broadcast(*mask, batch);
    }
    Tensor mapped = front(*mask);
    while (mapped.dim() < 5) {
      mapped = mapped.unsqueeze(1);
    }
    return fold_front(mapped, batch);
  }

  /// (N*batch, ...) back to a mapped (batch, ...).
  Tensor unfold(const Tensor& tensor, const SymInt& batch) const {
    return at::functorch::makeBatched(tensor.unflatten_symint(0, {size_, batch}), 0, level_);
  }

  /// The same for the gradient of an operand of batch 1: summed over the batch, not over the map.
  Tensor unfold_gradient(const Tensor& tensor, const SymInt& batch, const Tensor& input) const {
    Tensor gradient = tensor.unflatten_symint(0, {size_, batch});
    if (is_one(input.sym_size(0)) && !is_one(batch)) {
      gradient = gradient.sum(1, /*keepdim=*/true);
    }
    return at::functorch::makeBatched(gradient, 0, level_);
  }

 private:
  Map(std::int64_t level, SymInt size) : level_(level), size_(std::move(size)) {}

  static bool is_one(const SymInt& size) { return TORCH_GUARD_OR_FALSE(size.sym_eq(1)); }

  /// With the mapped dimension first, expanded where it is not mapped.
  Tensor front(const Tensor& tensor) const {
    if (maps(tensor)) {
      const auto* batched = maybeGetBatchedImpl(tensor);
      return batched->value().movedim(batched->bdim(), 0);
    }
    SymSizes sizes(tensor.sym_sizes().begin(), tensor.sym_sizes().end());
    sizes.insert(sizes.begin(), size_);
    return tensor.unsqueeze(0).expand_symint(sizes);
  }

  Tensor fold_front(const Tensor& mapped, const SymInt& batch) const {
    SymSizes sizes(mapped.sym_sizes().begin(), mapped.sym_sizes().end());
    sizes[1] = batch;
    SymSizes folded(sizes.begin() + 1, sizes.end());
    folded[0] = size_ * batch;
    return mapped.expand_symint(sizes).reshape_symint(folded);
  }

  std::int64_t level_;
  SymInt size_;
};

const Tensor* pointer_to(const std::optional<Tensor>& tensor, const Tensor& fallback) {
  return tensor.has_value() ? &*tensor : &fallback;
}

ForwardResult attention_forward_vmap(const ForwardTensors& t, const CallOptions& options) {
  check_forward(t, options);
  const c10::impl::ExcludeDispatchKeyGuard no_map(c10::DispatchKey::FuncTorchBatched);
  const auto map = Map::of({&t.query, &t.key, &t.value, pointer_to(t.attn_mask, t.query)});
  if (!map.has_value()) {
    return call_attention_forward(t, options);
  }
  const SymInt batch = t.query.sym_size(0);
  const auto [output, logsumexp, rng_state] = call_attention_forward(
      {map->fold(t.query, batch), map->fold_broadcast(t.key, batch),
       map->fold_broadcast(t.value, batch), map->fold_mask(t.attn_mask, batch)},
      options);
  return {map->unfold(output, batch), map->unfold(logsumexp, batch), rng_state};
}

BackwardResult attention_backward_vmap(const BackwardTensors& t, const GradInputMask& wanted,
                                       const CallOptions& options) {
  check_backward(t, wanted, options);
  const c10::impl::ExcludeDispatchKeyGuard no_map(c10::DispatchKey::FuncTorchBatched);
  const auto& in = t.inputs;
  const auto map =
      Map::of({&in.query, &in.key, &in.value, pointer_to(in.attn_mask, in.query), &t.grad_output,
               pointer_to(t.grad_logsumexp, in.query), &t.output, &t.logsumexp, &t.rng_state});
  if (!map.has_value()) {
    return call_attention_backward(t, wanted, options);
  }
  const SymInt batch = in.query.sym_size(0);
  // An operand whose gradient is wanted is folded in full, so that each example gets its own.
  const auto fold_keys = [&](const Tensor& tensor, bool is_wanted) {
    return is_wanted ? map->fold(tensor, batch) : map->fold_broadcast(tensor, batch);
  };
  const std::optional<Tensor> grad_logsumexp =
      t.grad_logsumexp.has_value() ? std::optional(map->fold(*t.grad_logsumexp, batch))
                                   : std::nullopt;
  const Tensor rng_state =
      map->maps(t.rng_state) ? maybeGetBatchedImpl(t.rng_state)->value().reshape({0}) : t.rng_state;
  auto [grad_query, grad_key, grad_value, grad_mask, grad_sinks, grad_slopes] =
      call_attention_backward(
          {map->fold(t.grad_output, batch),
           grad_logsumexp,
           map->fold(t.output, batch),
           map->fold(t.logsumexp, batch),
           rng_state,
           {map->fold(in.query, batch), fold_keys(in.key, wanted[1]),
            fold_keys(in.value, wanted[2]), map->fold_mask(in.attn_mask, batch)}},
          wanted, options);
  return {wanted[0] ? map->unfold(grad_query, batch) : grad_query,
          wanted[1] ? map->unfold_gradient(grad_key, batch, in.key) : grad_key,
          wanted[2] ? map->unfold_gradient(grad_value, batch, in.value) : grad_value,
          grad_mask,
          grad_sinks,
          grad_slopes};
}

FUSED_ATTENTION_LIBRARY_IMPL(FuncTorchBatched, m) {
  m.impl("attention_forward", TORCH_FN(forward_kernel<attention_forward_vmap>));
  m.impl("attention_backward", TORCH_FN(backward_kernel<attention_backward_vmap>));
}

}  // namespace
}  // namespace fused_attention
