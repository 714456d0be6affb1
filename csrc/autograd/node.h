// What the hand-written autograd nodes share, and the only differences between the supported
// versions of torch.
#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "../attention_op.h"

namespace fused_attention {

/// Torch 2.15 holds nodes by intrusive_ptr, 2.11 by shared_ptr with a deleter of its own:
/// `deleteNode` exists there only, and is found through its argument.
template <class NodeType>
auto make_node() {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, torch::autograd::Node>) {
    return c10::make_intrusive<NodeType>();
  } else {
    return std::shared_ptr<NodeType>(new NodeType, [](auto* node) { deleteNode(node); });
  }
}

/// Tells the observers of new nodes, where torch has them. Call it last.
template <class NodePointer>
void fire_creation_hooks(const NodePointer& node) {
  if constexpr (requires { fire_node_creation_hooks(node); }) {
    fire_node_creation_hooks(node);
  }
}

/// A node whose gradients are a function of the incoming ones, up to six saved tensors and the
/// options of the call. `Derived` has
///   static variable_list differentiate(const variable_list& grads, const Tensors&, const
///   CallOptions&,
///                                      const Wanted&);
/// Saved tensors from `kFirstOutput` on are outputs of the node's own forward.
template <class Derived, std::size_t kResults, std::size_t kFirstOutput>
class CallNode : public torch::autograd::TraceableFunction {
 public:
  using Tensors = std::array<std::optional<at::Tensor>, 6>;
  using Wanted = std::array<bool, kResults>;
  using variable_list = torch::autograd::variable_list;

  void save(std::size_t index, const at::Tensor& tensor) {
    if (tensor.defined()) {
      saved_[index] = torch::autograd::SavedVariable(tensor, index >= kFirstOutput);
    }
  }

  void save_options(const CallOptions& options) { options_ = options; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& variable : saved_) {
      variable.reset_data();
    }
  }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return Derived::differentiate(grads, unpack(), options_, wanted());
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    for (std::size_t i = 0; i < saved_.size(); ++i) {
      args.collect(saved_[i], i >= kFirstOutput);
    }
    visit_options(options_, [&](const auto& field) { args.collect(field); });
  }

  /// While compiled autograd traces, gradients are stand-ins of no meaningful shape: the function
  /// goes into the graph as it is, and is traced through when their shapes are known.
  variable_list apply_with_saved(const variable_list& grads,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override {
    namespace compiled = torch::dynamo::autograd;
    for (auto& variable : saved_) {
      saved.before(variable);
    }
    saved.before(options_.diagonal_offset);
    compiled::PackedArgs packed;
    std::vector<at::TypePtr> types;
    visit(unpack(), options_, wanted(), [&]<class Field>(const Field& field) {
      packed.pack(field);
      types.push_back(compiled::IValuePacker<Field>::packed_type());
    });
    const auto& interface = compiled::getPyCompilerInterface();
    const auto function =
        interface->bind_function(saved.get_py_compiler(), name(), differentiate_packed, types,
                                 /*is_custom_function=*/true);
    using Metadata = std::vector<std::optional<torch::autograd::InputMetadata>>;
    variable_list result = interface->call_function(
        saved.get_py_compiler(), "apply_functional", function, grads, packed.vec(),
        compiled::IValuePacker<Metadata>::pack(compiled::get_input_metadata(next_edges())));
    for (auto& variable : saved_) {
      saved.after(variable);
    }
    saved.after(options_.diagonal_offset);
    return result;
  }

 private:
  template <class Options, class Visitor>
  static void visit_options(Options& options, Visitor&& visitor) {
    visitor(options.dropout_p);
    visitor(options.is_causal);
    visitor(options.scale);
    visitor(options.diagonal_offset);
    visitor(options.window_size[0]);
    visitor(options.window_size[1]);
    visitor(options.softcap);
  }

  template <class TensorArray, class Options, class WantedArray, class Visitor>
  static void visit(TensorArray&& tensors, Options&& options, WantedArray&& wanted,
                    Visitor&& visitor) {
    for (auto& tensor : tensors) {
      visitor(tensor);
    }
    visit_options(options, visitor);
    visitor(wanted);
  }

  static variable_list differentiate_packed(const variable_list& grads,
                                            const std::vector<at::IValue>& values) {
    torch::dynamo::autograd::PackedArgs packed(values);
    Tensors tensors;
    CallOptions options;
    Wanted wanted{};
    visit(tensors, options, wanted,
          [&]<class Field>(Field& field) { field = packed.template unpack<Field>(); });
    return Derived::differentiate(grads, tensors, options, wanted);
  }

  Tensors unpack() {
    Tensors tensors;
    for (std::size_t i = 0; i < saved_.size(); ++i) {
      at::Tensor tensor = i >= kFirstOutput ? saved_[i].unpack(getptr()) : saved_[i].unpack();
      if (tensor.defined()) {
        tensors[i] = std::move(tensor);
      }
    }
    return tensors;
  }

  Wanted wanted() const {
    Wanted wanted{};
    for (std::size_t i = 0; i < kResults; ++i) {
      wanted[i] = task_should_compute_output(i);
    }
    return wanted;
  }

  std::array<torch::autograd::SavedVariable, 6> saved_;
  CallOptions options_;
};

}  // namespace fused_attention
