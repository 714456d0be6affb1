"""Faults of the plain kernels of half precision that show only where rows are not contiguous."""

from __future__ import annotations

from mutants import fault

COPY = "csrc/cuda/kernels/copy.h"
FORWARD = "csrc/cuda/kernels/forward.h"

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
)
