// One call of the kernels on one thread, for callgrind (count_instructions.py): small reference
// shapes on AVX2, the widest ISA that valgrind knows. Without an argument: what was built, and the
// names of the calls.
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "cpu/isa.h"
#include "cpu/run.h"
#include "kernel_call.h"

namespace {

using namespace fused_attention;

struct Reference {
  bench::Shape shape;
  core::DType dtype;
  bool backward;
};

constexpr Reference kReferences[] = {
    {{"forward fp32 B1 H4/2 S512 D64 causal", {1, 4, 2, 512, 512, 64, 64}, true},
     core::DType::kFloat32,
     false},
    {{"backward fp32 B1 H4/2 S512 D64 causal", {1, 4, 2, 512, 512, 64, 64}, true},
     core::DType::kFloat32,
     true},
    {{"forward bf16 B1 H4/4 S333 D80 bool mask",
      {1, 4, 4, 333, 333, 80, 80},
      false,
      bench::Mask::kBool},
     core::DType::kBFloat16,
     false},
};

#if defined(__clang__)
constexpr char kCompiler[] = __VERSION__;
#else
constexpr char kCompiler[] = "GCC " __VERSION__;
#endif

int list() {
  std::printf("%s %s\n", kCompiler, FUSED_ATTENTION_BUILD_TYPE);
  for (const Reference& reference : kReferences) std::printf("%s\n", reference.shape.name);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return list();
  at::set_num_threads(1);
  cpu::set_isa("avx2");
  for (const Reference& reference : kReferences) {
    if (std::strcmp(argv[1], reference.shape.name) != 0) continue;
    bench::Call call(reference.shape, reference.dtype);
    // callgrind counts within cpu::forward, or within cpu::backward, as it is told to.
    cpu::forward(call.forward);
    if (reference.backward) cpu::backward(call.backward);
    return 0;
  }
  std::fprintf(stderr, "no call is named '%s'\n", argv[1]);
  return 2;
}
