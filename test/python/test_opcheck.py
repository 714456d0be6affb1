"""torch.library.opcheck with all its tests, for every operator."""

import pytest
import torch
from torch.library import opcheck

from cases import Shape, make

ops = torch.ops.fused_attention
SHAPE = Shape(2, 4, 2, 5, 7, 8, 6)
OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True, "diagonal_offset": 2},
    "window": {"window_size": [2, 1], "scale": 0.5},
    "bool mask": {"attn_mask": (torch.arange(70) % 3 > 0).view(2, 1, 5, 7)},
    "float mask": {"attn_mask": torch.arange(140).view(4, 5, 7).cos()},
}


def inputs(requires_grad, layout="contiguous", shape=SHAPE, dtype=torch.float32):
    qkv = make(shape, dtype).qkv
    if layout == "bshd":
        qkv = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in qkv]
    return [t.detach().requires_grad_(requires_grad) for t in qkv]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["attention", "attention_with_lse", "attention_forward"])
def test_opcheck_of_forward_operators(name, options, requires_grad):
    options = dict(OPTIONS[options])
    args = [*inputs(requires_grad), options.pop("attn_mask", None)]
    opcheck(getattr(ops, name).default, args, options)


@pytest.mark.parametrize("layout", ["contiguous", "bshd"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_opcheck_of_other_layouts_and_dtypes(layout, dtype):
    args = inputs(True, layout, Shape(2, 4, 1, 1, 9, 8, 8), dtype)
    opcheck(ops.attention_forward.default, args, {"is_causal": True, "diagonal_offset": 8})


@pytest.mark.parametrize("shape", [Shape(0, 4, 2, 5, 7, 8, 8), Shape(2, 4, 2, 5, 0, 8, 8)], ids=str)
def test_opcheck_of_empty_sizes(shape):
    opcheck(ops.attention_forward.default, inputs(True, shape=shape))


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("need", [(True, True, True), (False, True, False)], ids=str)
def test_opcheck_of_the_backward_operator(need, requires_grad):
    x = make(SHAPE)
    out, logsumexp, rng = ops.attention_forward(*x.qkv, is_causal=True)
    qkv = [t.clone().requires_grad_(requires_grad) for t in x.qkv]
    args = [
        x.grad_output.clone().requires_grad_(requires_grad),
        x.grad_logsumexp,
        *qkv,
        out,
        logsumexp,
        rng,
        None,
        0.0,
        True,
        [*need, False, False, False],
    ]
    opcheck(ops.attention_backward.default, args)
