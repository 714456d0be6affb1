"""Who is measured: fused_attention, torch's SDPA and its math form, compiled FlexAttention, and
attention written out with torch.bmm."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from bench_cases import Case, Inputs
from torch.nn.attention import SDPBackend, sdpa_kernel

import fused_attention

FUSED, SDPA, MATH, FLEX, BMM = "fused", "sdpa", "math", "flex", "bmm"

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


def _bmm(case: Case, inputs: Inputs) -> Callable:
    """What one writes without any of them; masks and grouped heads are not worth it."""
    if case.mask or case.hq != case.hkv:
        raise NotImplementedError("only plain and causal attention are written out")
    hidden = None
    if case.causal:
        hidden = torch.ones(case.sq, case.sk, dtype=torch.bool).triu(1)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q3, k3, v3 = (x.flatten(0, 1) for x in (q, k, v))
        scores = torch.bmm(q3 * case.d**-0.5, k3.transpose(1, 2))
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        return torch.bmm(torch.softmax(scores, -1), v3).view(q.shape)

    return call


_FORWARDS = {FUSED: _fused, SDPA: _sdpa, MATH: _math, FLEX: _flex, BMM: _bmm}
