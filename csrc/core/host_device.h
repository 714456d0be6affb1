// How the functions of core/ are declared.
//
// Internal linkage and forced inlining on the host: these headers are compiled once per ISA, and an
// out-of-line copy that the linker may share would bring AVX-512 instructions to every machine.
#pragma once

#if defined(__CUDACC__)
#define FUSED_ATTENTION_CORE __host__ __device__ __forceinline__
#else
#define FUSED_ATTENTION_CORE [[maybe_unused]] static inline __attribute__((always_inline))
#endif
