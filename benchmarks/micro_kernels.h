// The pieces of the kernels, one by one and per ISA, for bench_kernels.cpp.
#pragma once

namespace fused_attention::cpu {

/// `run` does its work once, on memory of its own that fits L1 and L2.
struct MicroKernel {
  const char* name;
  double flops;     // 0 where the piece is no product
  double elements;  // that are read
  void (*run)();
};

struct MicroKernels {
  int vector_bytes;
  bool pairs;  // the products multiply pairs of bf16
  int count;
  const MicroKernel* first;
};

namespace generic {
MicroKernels micro_kernels();
}
namespace avx2 {
MicroKernels micro_kernels();
}
namespace avx512 {
MicroKernels micro_kernels();
}
namespace avx512_bf16 {
MicroKernels micro_kernels();
}

}  // namespace fused_attention::cpu
