// The ISA that this translation unit is compiled for, and the namespace of everything in it.
//
// All code lives in an unnamed namespace inside the ISA's namespace: nothing but the table accessor
// leaves the object file, so the linker can never share a vectorised copy with another ISA.
#pragma once

#if defined(FUSED_ATTENTION_ISA_AVX512_BF16)
#define FUSED_ATTENTION_ISA_AVX512  // and avx512_bf16 beside
#define FUSED_ATTENTION_ISA_NAMESPACE avx512_bf16
#define FUSED_ATTENTION_VECTOR_BYTES 64
#elif defined(FUSED_ATTENTION_ISA_AVX512)
#define FUSED_ATTENTION_ISA_NAMESPACE avx512
#define FUSED_ATTENTION_VECTOR_BYTES 64
#elif defined(FUSED_ATTENTION_ISA_AVX2)
#define FUSED_ATTENTION_ISA_NAMESPACE avx2
#define FUSED_ATTENTION_VECTOR_BYTES 32
#elif defined(FUSED_ATTENTION_ISA_GENERIC)
#define FUSED_ATTENTION_ISA_NAMESPACE generic
#define FUSED_ATTENTION_VECTOR_BYTES 16
#else
#error "compile with -DFUSED_ATTENTION_ISA_GENERIC, _AVX2, _AVX512 or _AVX512_BF16"
#endif

#define FUSED_ATTENTION_BEGIN_ISA_NAMESPACE                       \
  namespace fused_attention::cpu::FUSED_ATTENTION_ISA_NAMESPACE { \
  namespace {
#define FUSED_ATTENTION_END_ISA_NAMESPACE \
  }                                       \
  }

#define FUSED_ATTENTION_INLINE [[maybe_unused]] inline __attribute__((always_inline))
/// The same for a lambda, between its parameters and its body.
#define FUSED_ATTENTION_LAMBDA __attribute__((always_inline))
