// Autograd of attention_forward and attention_backward by hand-written nodes. Both run their fused
// kernel for the values; the second derivative is computed by plain math, and only when somebody
// asks for it.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "../attention_check.h"
#include "../registration.h"
#include "attention_formula.h"
#include "node.h"

namespace fused_attention {
namespace {

using at::Tensor;
using torch::autograd::compute_requires_grad;
using torch::autograd::isFwGradDefined;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

constexpr std::uint64_t kLevel = 0;  // torch has one level of forward-mode AD

std::optional<Tensor> optional(Tensor tensor) {
  return tensor.defined() ? std::optional<Tensor>(std::move(tensor)) : std::nullopt;
}

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

/// The gradient of attention_backward's own inputs: grad_output, grad_logsumexp, query, key, value.
/// output and logsumexp are values there, the formula computes from query, key and value.
struct AttentionBackwardBackward : public torch::autograd::TraceableFunction {
  std::array<SavedVariable, 5> inputs;
  SavedVariable attn_mask;
  CallOptions options;

  std::string name() const override { return "AttentionBackwardBackward"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& saved : inputs) {
      saved.reset_data();
    }
    attn_mask.reset_data();
  }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list result(inputs.size());
    if (!grads[0].defined() && !grads[1].defined() && !grads[2].defined()) {
      return result;
    }
    formula::BackwardInputs primal;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      primal[i] = inputs[i].unpack();
    }
    const auto gradients = formula::backward_gradients(primal, {grads[0], grads[1], grads[2]},
                                                       optional(attn_mask.unpack()), options);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (task_should_compute_output(i)) {
        result[i] = gradients[i];
      }
    }
    return result;
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    for (const SavedVariable& saved : inputs) {
      args.collect(saved, /*is_output=*/false);
    }
    args.collect(attn_mask, /*is_output=*/false);
    collect_options(args, options);
  }

  variable_list apply_with_saved(const variable_list& grads,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override {
    for (SavedVariable& input : inputs) {
      saved.before(input);
    }
    saved.before(attn_mask);
    saved.before(options.diagonal_offset);
    variable_list result = apply(variable_list(grads));
    for (SavedVariable& input : inputs) {
      saved.after(input);
    }
    saved.after(attn_mask);
    saved.after(options.diagonal_offset);
    return result;
  }
};

struct AttentionBackward : public torch::autograd::TraceableFunction {
  SavedVariable query;
  SavedVariable key;
  SavedVariable value;
  SavedVariable attn_mask;
  SavedVariable output;
  SavedVariable logsumexp;
  CallOptions options;

  std::string name() const override { return "AttentionBackward"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable* saved : saved_variables()) {
      saved->reset_data();
    }
  }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list result(3);
    if (!grads[0].defined() && !grads[1].defined()) {
      return result;
    }
    const Tensor q = query.unpack();
    const Tensor k = key.unpack();
    const Tensor v = value.unpack();
    const std::optional<Tensor> mask = optional(attn_mask.unpack());
    const Tensor out = output.unpack(getptr());
    const Tensor lse = logsumexp.unpack(getptr());
    // Only the logsumexp was used: a zero that takes no memory.
    const Tensor grad_output = grads[0].defined()
                                   ? grads[0]
                                   : at::zeros({1}, out.options()).expand_symint(out.sym_sizes());
    const GradInputMask wanted = {task_should_compute_output(0),
                                  task_should_compute_output(1),
                                  task_should_compute_output(2),
                                  false,
                                  false,
                                  false};
    const Tensor rng_state = at::empty({0}, out.options().dtype(at::kLong));
    const std::optional<Tensor> grad_logsumexp = optional(grads[1]);
    auto [grad_query, grad_key, grad_value, grad_mask, grad_sinks, grad_slopes] =
        call_attention_backward({grad_output, grad_logsumexp, out, lse, rng_state, {q, k, v, mask}},
                                wanted, options);
    result[0] = wanted[0] ? grad_query : Tensor();
    result[1] = wanted[1] ? grad_key : Tensor();
    result[2] = wanted[2] ? grad_value : Tensor();
    return result;
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    for (const SavedVariable* saved : {&query, &key, &value, &attn_mask}) {
      args.collect(*saved, /*is_output=*/false);
    }
    args.collect(output, /*is_output=*/true);
    args.collect(logsumexp, /*is_output=*/true);
    collect_options(args, options);
  }

  variable_list apply_with_saved(const variable_list& grads,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override {
    for (SavedVariable* variable : saved_variables()) {
      saved.before(*variable);
    }
    saved.before(options.diagonal_offset);
    variable_list result = apply(variable_list(grads));
    for (SavedVariable* variable : saved_variables()) {
      saved.after(*variable);
    }
    saved.after(options.diagonal_offset);
    return result;
  }

 private:
  std::array<SavedVariable*, 6> saved_variables() {
    return {&query, &key, &value, &attn_mask, &output, &logsumexp};
  }
};

ForwardResult attention_forward_autograd(const ForwardTensors& t, const CallOptions& options) {
  check_dense(t);
  check_mask(t.attn_mask);
  using NodePointer = decltype(make_node<AttentionBackward>());
  NodePointer node;
  if (compute_requires_grad(t.query, t.key, t.value)) {
    node = make_node<AttentionBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(t.query, t.key, t.value));
  }
  ForwardResult result = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return call_attention_forward(t, options);
  }();
  const auto& [output, logsumexp, rng_state] = result;
  if (node) {
    node->query = SavedVariable(t.query, /*is_output=*/false);
    node->key = SavedVariable(t.key, /*is_output=*/false);
    node->value = SavedVariable(t.value, /*is_output=*/false);
    if (t.attn_mask.has_value()) {
      node->attn_mask = SavedVariable(*t.attn_mask, /*is_output=*/false);
    }
    node->options = options;
    torch::autograd::set_history(output, node);
    torch::autograd::set_history(logsumexp, node);
    node->output = SavedVariable(output, /*is_output=*/true);
    node->logsumexp = SavedVariable(logsumexp, /*is_output=*/true);
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
  check_dense(t.inputs);
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
      if (inputs[i].defined()) {
        node->inputs[i] = SavedVariable(inputs[i], /*is_output=*/false);
      }
    }
    if (t.inputs.attn_mask.has_value()) {
      node->attn_mask = SavedVariable(*t.inputs.attn_mask, /*is_output=*/false);
    }
    node->options = options;
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
