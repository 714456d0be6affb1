"""Tensors whose elements lie far apart, in memory that is mostly not there."""

from __future__ import annotations

import mmap

import pytest
import torch

MAP_NORESERVE = 0x4000  # Linux; Python names it from 3.12 on
STRIDE = 2**30


def far_apart(t: torch.Tensor) -> torch.Tensor:
    """A copy with a batch stride of 2^30 elements: from batch index 2 on, 32 bits do not do. On the
    CPU the gap is address space only; on a GPU it is memory, which nothing fills."""
    span = (t.size(0) - 1) * STRIDE + t[0].numel()
    size = span * t.element_size()
    if t.is_cuda:
        free, _ = torch.cuda.mem_get_info(t.device)
        if free < size + 2**30:
            pytest.skip(f"needs {size + 2**30} bytes on {t.device}, where {free} are free")
        flat = torch.empty(span, dtype=t.dtype, device=t.device)
    else:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        try:
            buffer = mmap.mmap(-1, size, flags=flags)
        except (OSError, ValueError) as error:
            pytest.skip(f"needs {size} bytes of address space: {error}")
        flat = torch.frombuffer(buffer, dtype=t.dtype)
    view = flat.as_strided(t.shape, (STRIDE, *t[0].contiguous().stride()))
    return view.copy_(t)
