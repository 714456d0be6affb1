// Calls the operator through the dispatcher by name, forward and backward.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/randn.h>

#include <cstdio>

int main() {
  const auto op = c10::Dispatcher::singleton().findSchema({"fused_attention::attention", ""});
  if (!op) {
    std::puts("fused_attention::attention is not registered");
    return 1;
  }
  at::Tensor query = at::randn({1, 4, 7, 16}).requires_grad_(true);
  at::Tensor key = at::randn({1, 2, 7, 16});
  torch::jit::Stack stack = {query, key, key};
  for (const auto& argument : op->schema().arguments()) {
    if (argument.default_value() && stack.size() >= 3) {
      stack.push_back(*argument.default_value());
    }
  }
  op->callBoxed(&stack);
  const at::Tensor output = stack[0].toTensor();
  output.sum().backward();
  const bool good = output.sizes() == query.sizes() && query.grad().defined() &&
                    query.grad().isfinite().all().item<bool>();
  std::puts(good ? "worked" : "wrong result");
  return good ? 0 : 1;
}
