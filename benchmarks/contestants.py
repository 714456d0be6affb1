"""Who is measured: fused_attention, torch's SDPA and its math form, compiled FlexAttention."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from bench_cases import Case, Inputs
from torch.nn.attention import SDPBackend, sdpa_kernel

import fused_attention

FUSED, SDPA, MATH, FLEX = "fused", "sdpa", "math", "flex"

Call = Callable[[], object]


def contestant(name: str, case: Case, inputs: Inputs, backward: bool) -> Call:
    """Returns what is timed: forward without a graph, or forward and backward to q, k and v.

    Raises what the contestant raises where it does not support the case."""
    forward = _FORWARDS[name](case, inputs)
    if not backward:

        def call() -> torch.Tensor:
            with torch.no_grad():
                return forward(inputs.q, inputs.k, inputs.v)

        return call
    leaves = tuple(x.detach().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))

    def train() -> tuple[torch.Tensor, ...]:
        output = forward(*leaves)
        return output, *torch.autograd.grad(output, leaves, inputs.grad)

    return train


def _fused(case: Case, inputs: Inputs) -> Callable:
    return lambda q, k, v: fused_attention.attention(
        q, k, v, attn_mask=inputs.mask, is_causal=case.causal
    )


def _sdpa(case: Case, inputs: Inputs) -> Callable:
    gqa = case.hq != case.hkv
    return lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, attn_mask=inputs.mask, is_causal=case.causal, enable_gqa=gqa
    )


def _math(case: Case, inputs: Inputs) -> Callable:
    attend = _sdpa(case, inputs)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return attend(q, k, v)

    return call


def _flex(case: Case, inputs: Inputs) -> Callable:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if case.mask:
        raise NotImplementedError("a dense mask is not how FlexAttention is used")
    block_mask = None
    if case.causal:
        block_mask = create_block_mask(
            lambda b, h, i, j: i >= j, None, None, case.sq, case.sk, device="cpu"
        )
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    gqa = case.hq != case.hkv
    return lambda q, k, v: compiled(q, k, v, block_mask=block_mask, enable_gqa=gqa)


_FORWARDS = {FUSED: _fused, SDPA: _sdpa, MATH: _math, FLEX: _flex}
