// What the hand-written autograd nodes share, and the only differences between the supported
// versions of torch.
#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <memory>
#include <type_traits>

#include "../attention_op.h"

namespace fused_attention {

/// Nodes are held by intrusive_ptr since torch 2.12 or so, by shared_ptr with a deleter of its own
/// before; `deleteNode` exists there only and is found through its argument.
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

/// Tells compiled autograd what a node holds besides tensors.
inline void collect_options(torch::dynamo::autograd::CompiledNodeArgs& args,
                            const CallOptions& options) {
  args.collect(options.dropout_p);
  args.collect(options.is_causal);
  args.collect(options.scale);
  args.collect(options.diagonal_offset);
  args.collect(options.window_size[0]);
  args.collect(options.window_size[1]);
  args.collect(options.softcap);
}

}  // namespace fused_attention
