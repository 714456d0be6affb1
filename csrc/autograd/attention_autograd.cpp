// Autograd of attention_forward and attention_backward by hand-written nodes. Both run their fused
// kernel for the values; the second derivative is computed by plain math, and only when somebody
// asks for it.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "../attention_check.h"
#include "../registration.h"
#include "attention_formula.h"
#include "node.h"

namespace fused_attention {
namespace {

using at::Tensor;
using torch::autograd::compute_requires_grad;
using torch::autograd::isFwGradDefined;
using torch::autograd::variable_list;

constexpr std::uint64_t kLevel = 0;  // torch has one level of forward-mode AD

Tensor tangent_of(const Tensor& tensor) {
  return tensor.defined() ? tensor._fw_grad(kLevel) : Tensor();
}

Tensor primal_of(const Tensor& tensor) {
  return isFwGradDefined(tensor) ? tensor._fw_primal(kLevel) : tensor;
}

void set_tangent(const Tensor& tensor, const Tensor& tangent) {
  tensor._set_fw_grad(tangent, kLevel, /*is_inplace_op=*/false);
}

/// No kernel writes a gradient or tangent of the mask: saying nothing would be a wrong derivative.
void check_mask(const std::optional<Tensor>& attn_mask) {
  if (attn_mask.has_value() && (compute_requires_grad(attn_mask) || isFwGradDefined(attn_mask))) {
    TORCH_CHECK(false,
                "fused_attention::attention: a gradient to attn_mask is not supported yet, but got "
                "one that requires grad or has a tangent: detach it, or call under "
                "torch.no_grad()");
  }
}

/// A gradient that a device has no kernel for is refused before anything runs: the kernels of
/// forward do not know that there will be a backward pass.
void check_has_backward(const ForwardTensors& t, const CallOptions& options) {
  if (t.query.is_cuda()) {
    check_forward(t, options);
    check_cuda_limits(t, /*with_gradient=*/true);
  }
}

/// Of attention_forward. Saves query, key, value, attn_mask and its outputs output, logsumexp.
struct AttentionBackward : public CallNode<AttentionBackward, 3, 4> {
  std::string name() const override { return "AttentionBackward"; }

  static variable_list differentiate(const variable_list& grads, const Tensors& saved,
                                     const CallOptions& options, const Wanted& wanted) {
    if (!grads[0].defined() && !grads[1].defined()) {
      return variable_list(3);
    }
    const Tensor& output = *saved[4];
    // Only the logsumexp was used: a zero that takes no memory.
    const Tensor grad_output =
        grads[0].defined() ? grads[0]
                           : at::zeros({1}, output.options()).expand_symint(output.sym_sizes());
    const auto grad_logsumexp = grads[1].defined() ? std::optional(grads[1]) : std::nullopt;
    const Tensor rng_state = at::empty({0}, output.options().dtype(at::kLong));
    const auto result = call_attention_backward({grad_output,
                                                 grad_logsumexp,
                                                 output,
                                                 *saved[5],
                                                 rng_state,
                                                 {*saved[0], *saved[1], *saved[2], saved[3]}},
                                                {wanted[0], wanted[1], wanted[2]}, options);
    return {wanted[0] ? std::get<0>(result) : Tensor(), wanted[1] ? std::get<1>(result) : Tensor(),
            wanted[2] ? std::get<2>(result) : Tensor()};
  }
};

/// Of attention_backward. Saves grad_output, grad_logsumexp, query, key, value, attn_mask. The
/// operator's inputs output and logsumexp are values: the formula computes from query, key and
/// value.
struct AttentionBackwardBackward : public CallNode<AttentionBackwardBackward, 5, 6> {
  std::string name() const override { return "AttentionBackwardBackward"; }

  static variable_list differentiate(const variable_list& grads, const Tensors& saved,
                                     const CallOptions& options, const Wanted& wanted) {
    if (!grads[0].defined() && !grads[1].defined() && !grads[2].defined()) {
      return variable_list(5);
    }
    const auto gradients = formula::backward_gradients(
        {*saved[0], saved[1].value_or(Tensor()), *saved[2], *saved[3], *saved[4]},
        {grads[0], grads[1], grads[2]}, saved[5], options);
    variable_list result(5);
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i] = wanted[i] ? gradients[i] : Tensor();
    }
    return result;
  }
};

ForwardResult attention_forward_autograd(const ForwardTensors& t, const CallOptions& options) {
  check_dense(t);
  check_mask(t.attn_mask);
  using NodePointer = decltype(make_node<AttentionBackward>());
  NodePointer node;
  if (compute_requires_grad(t.query, t.key, t.value)) {
    check_has_backward(t, options);
    node = make_node<AttentionBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(t.query, t.key, t.value));
  }
  ForwardResult result = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return call_attention_forward(t, options);
  }();
  const auto& [output, logsumexp, rng_state] = result;
  if (node) {
    torch::autograd::set_history(output, node);
    torch::autograd::set_history(logsumexp, node);
    node->save(0, t.query);
    node->save(1, t.key);
    node->save(2, t.value);
    node->save(3, t.attn_mask.value_or(Tensor()));
    node->save(4, output);
    node->save(5, logsumexp);
    node->save_options(options);
  }
  if (isFwGradDefined(t.query) || isFwGradDefined(t.key) || isFwGradDefined(t.value)) {
    const Tensor query = primal_of(t.query);
    const Tensor key = primal_of(t.key);
    const Tensor value = primal_of(t.value);
    const auto [output_tangent, logsumexp_tangent] = formula::forward_tangents(
        {query, key, value, t.attn_mask},
        {tangent_of(t.query), tangent_of(t.key), tangent_of(t.value)}, options);
    set_tangent(output, output_tangent);
    set_tangent(logsumexp, logsumexp_tangent);
  }
  if (node) {
    fire_creation_hooks(node);
  }
  return result;
}

BackwardResult attention_backward_autograd(const BackwardTensors& t, const GradInputMask& wanted,
                                           const CallOptions& options) {
  check_dense(t);
  check_mask(t.inputs.attn_mask);
  const formula::BackwardInputs inputs = {t.grad_output, t.grad_logsumexp.value_or(Tensor()),
                                          t.inputs.query, t.inputs.key, t.inputs.value};
  using NodePointer = decltype(make_node<AttentionBackwardBackward>());
  NodePointer node;
  if (compute_requires_grad(inputs[0], inputs[1], inputs[2], inputs[3], inputs[4])) {
    node = make_node<AttentionBackwardBackward>();
    node->set_next_edges(
        torch::autograd::collect_next_edges(inputs[0], inputs[1], inputs[2], inputs[3], inputs[4]));
  }
  BackwardResult result = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return call_attention_backward(t, wanted, options);
  }();
  const auto& [grad_query, grad_key, grad_value, grad_mask, grad_sinks, grad_slopes] = result;
  const std::array<Tensor, 3> gradients = {grad_query, grad_key, grad_value};
  if (node) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      node->save(i, inputs[i]);
    }
    node->save(5, t.inputs.attn_mask.value_or(Tensor()));
    node->save_options(options);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      torch::autograd::set_history(wanted[i] ? gradients[i] : Tensor(), node);
    }
  }
  const bool has_tangent = std::any_of(inputs.begin(), inputs.end(),
                                       [](const Tensor& input) { return isFwGradDefined(input); });
  if (has_tangent) {
    formula::BackwardInputs primal;
    formula::BackwardInputs tangents;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      primal[i] = primal_of(inputs[i]);
      tangents[i] = tangent_of(inputs[i]);
    }
    const auto gradient_tangents =
        formula::backward_tangents(primal, tangents, t.inputs.attn_mask, options);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (wanted[i]) {
        set_tangent(gradients[i], gradient_tangents[i]);
      }
    }
  }
  if (node) {
    fire_creation_hooks(node);
  }
  return result;
}

FUSED_ATTENTION_LIBRARY_IMPL(Autograd, m) {
  m.impl("attention_forward", TORCH_FN(forward_kernel<attention_forward_autograd>));
  m.impl("attention_backward", TORCH_FN(backward_kernel<attention_backward_autograd>));
}

}  // namespace
}  // namespace fused_attention
