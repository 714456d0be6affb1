"""Builders of inputs, and the one way in which the tests run the operator on them."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import fused_attention  # noqa: F401  registers the operators
from reference import Result, assert_close_to_reference

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
GROUPS = {"mha": (4, 4), "gqa": (6, 2), "mqa": (3, 1)}


def dtype_id(dtype) -> str:
    return str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else None


def message(call, *args, **options) -> str:
    """First line of the error that the call raises."""
    with pytest.raises(RuntimeError) as error:
        call(*args, **options)
    return str(error.value).splitlines()[0]


class Shape(NamedTuple):
    """The letters of the design page."""

    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_k: int
    dim: int
    dim_v: int

    def __str__(self) -> str:
        return "B{}-H{}/{}-S{}/{}-D{}/{}".format(*self)


class Inputs(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    grad_output: Tensor
    grad_logsumexp: Tensor

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        return self[:3]


def make(shape: Shape, dtype: torch.dtype = torch.float32) -> Inputs:
    b, hq, hkv, sq, sk, d, dv = shape
    lse_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    return Inputs(
        torch.randn(b, hq, sq, d).to(dtype),
        torch.randn(b, hkv, sk, d).to(dtype),
        torch.randn(b, hkv, sk, dv).to(dtype),
        torch.randn(b, hq, sq, dv).to(dtype),
        torch.randn(b, hq, sq).to(lse_dtype),
    )


def run_fused(query, key, value, grad_output=None, grad_logsumexp=None, **options) -> Result:
    """Output, LSE and gradients of the operator, through autograd."""
    grads = {"output": grad_output, "logsumexp": grad_logsumexp}
    wants = any(g is not None for g in grads.values())
    leaves = [t.detach().requires_grad_(wants) for t in (query, key, value)]
    output, logsumexp = torch.ops.fused_attention.attention_with_lse(*leaves, **options)
    if not wants:
        return Result(output, logsumexp)
    outputs = [o for o, g in ((output, grad_output), (logsumexp, grad_logsumexp)) if g is not None]
    result = torch.autograd.grad(outputs, leaves, [g for g in grads.values() if g is not None])
    return Result(output.detach(), logsumexp.detach(), *result)


def check(query, key, value, grad_output=None, grad_logsumexp=None, **options) -> Result:
    """Runs the operator, holds it against the reference, returns the operator's result."""
    grads = (grad_output, grad_logsumexp)
    actual = run_fused(query, key, value, *grads, **options)
    assert_close_to_reference(actual, query, key, value, *grads, **options)
    return actual


# Every length, head dim and head group of the contract, mixed so that a full product is not needed:
# one row is one call.
SHAPES = (
    Shape(1, 1, 1, 1, 1, 1, 1),
    Shape(2, 3, 1, 1, 33, 7, 7),
    Shape(1, 2, 2, 2, 1, 40, 40),
    Shape(2, 4, 4, 2, 31, 64, 64),
    Shape(1, 6, 2, 31, 31, 80, 80),
    Shape(2, 4, 2, 33, 33, 96, 96),
    Shape(1, 3, 1, 31, 129, 128, 128),
    Shape(1, 2, 1, 127, 33, 192, 128),
    Shape(1, 4, 4, 33, 127, 64, 40),
    Shape(1, 3, 3, 129, 129, 40, 64),
    Shape(1, 6, 2, 127, 129, 64, 64),
    Shape(1, 2, 1, 333, 129, 7, 80),
    Shape(1, 2, 2, 129, 333, 128, 128),
    Shape(2, 2, 1, 333, 333, 80, 7),
    Shape(1, 1, 1, 333, 333, 1, 1),
    Shape(1, 8, 1, 1, 333, 96, 96),
    Shape(1, 1, 1, 129, 127, 576, 512),
)
