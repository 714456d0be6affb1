"""Faults of the plain kernels of half precision: rows that are not contiguous, huge scores."""

from __future__ import annotations

from mutants import fault

COPY = "csrc/cuda/kernels/copy.h"
FORWARD = "csrc/cuda/kernels/forward.h"
SOFTMAX = "csrc/cuda/kernels/softmax.h"

PLAIN = (
    fault(
        "plain kernels take the rows of a tile for contiguous",
        COPY,
        "row = row + kStep * stride_s;",
        "row = row + kStep * (kAnyStride ? stride_s : dim);",
    ),
    fault(
        "plain kernels take the keys of a head for contiguous",
        FORWARD,
        "head_kv * x.stride_h + first_column",
        "head_kv * (C::kGeneral ? x.stride_h : x.stride_s * seq_k) + first_column",
    ),
    fault(
        "forward keeps the rounding of a huge shift in its weights",
        SOFTMAX,
        "return shift > kFar || shift < -kFar;",
        "return false;",
    ),
    fault(
        "forward forgets what it summed when the maximum becomes huge",
        SOFTMAX,
        "rescaling = exponent.exponent(max[m][half] - largest, shift);",
        "rescaling = -kInfinity;",
    ),
    fault(
        "backward keeps the rounding of a huge shift in its weights",
        SOFTMAX,
        "return (score - shift) * scale_log2;",
        "return fused_multiply_add(score, scale_log2, -(shift * scale_log2));",
    ),
)
