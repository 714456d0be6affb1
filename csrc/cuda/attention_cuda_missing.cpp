// Stands at key CUDA in a build without CUDA kernels: says so, and what to do.
#include "../registration.h"

namespace fused_attention {
namespace {

void raise_cpu_only_build(const c10::OperatorHandle& op, torch::jit::Stack* /*stack*/) {
  TORCH_CHECK(
      false, "fused_attention::attention: expected tensors on the CPU, but got CUDA tensors (",
      op.schema().name(),
      "). This build has no CUDA kernels: move the tensors to the CPU. A version that has them "
      "is rebuilt, where a CUDA toolkit is installed, with USE_CUDA=1 pip install "
      "--no-build-isolation .");
}

FUSED_ATTENTION_LIBRARY_IMPL(CUDA, m) {
  m.impl("attention_forward", torch::CppFunction::makeFromBoxedFunction<&raise_cpu_only_build>());
  m.impl("attention_backward", torch::CppFunction::makeFromBoxedFunction<&raise_cpu_only_build>());
}

}  // namespace
}  // namespace fused_attention
