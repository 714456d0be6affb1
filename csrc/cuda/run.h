// The CUDA kernels by dtype. Torch-free and free of CUDA's headers: each .cu file compiles the
// kernels of one dtype.
#pragma once

#include "../core/problem.h"
#include "key_split.h"

struct CUstream_st;

namespace fused_attention::cuda {

int multiprocessors(int device);

/// Launches the forward pass on a stream of the current device, without waiting. False if no kernel
/// holds the head dim D. Throws std::runtime_error if the launch fails.
bool forward(const core::ForwardProblem& call, const KeySplit& split, CUstream_st* stream);

bool forward_bfloat16(const core::ForwardProblem& call, const KeySplit& split, CUstream_st* stream);
bool forward_float16(const core::ForwardProblem& call, const KeySplit& split, CUstream_st* stream);
void forward_float32(const core::ForwardProblem& call, const KeySplit& split, CUstream_st* stream);
void forward_float64(const core::ForwardProblem& call, const KeySplit& split, CUstream_st* stream);

/// Launches the backward pass. `statistics`: room for kStatisticsNumbers numbers, of the type of
/// LSE, for each of the (B, Hq, Sq) rows. False if no kernel holds D and Dv.
bool backward(const core::BackwardProblem& call, void* statistics, CUstream_st* stream);

bool backward_bfloat16(const core::BackwardProblem& call, void* statistics, CUstream_st* stream);
bool backward_float16(const core::BackwardProblem& call, void* statistics, CUstream_st* stream);
void backward_float32(const core::BackwardProblem& call, void* statistics, CUstream_st* stream);
void backward_float64(const core::BackwardProblem& call, void* statistics, CUstream_st* stream);

}  // namespace fused_attention::cuda
