"""Autocast: which dtype runs, comes out, and goes back."""

import pytest
import torch

from cases import Shape, make
from reference import Result, assert_close_to_reference

ops = torch.ops.fused_attention
SHAPE = Shape(1, 4, 2, 33, 35, 16, 16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_inputs_run_in_the_autocast_dtype_and_get_float32_gradients(dtype):
    x = make(SHAPE)
    inputs = [t.clone().requires_grad_() for t in x.qkv]
    with torch.autocast("cpu", dtype):
        out = ops.attention(*inputs, is_causal=True)
    assert out.dtype == dtype
    grad = x.grad_output.to(dtype)
    grads = torch.autograd.grad(out, inputs, grad)
    assert all(g.dtype == torch.float32 for g in grads)
    low = [t.to(dtype) for t in x.qkv]
    got = Result(out.detach(), None, *(g.to(dtype) for g in grads))
    assert_close_to_reference(got, *low, grad, is_causal=True)


@pytest.mark.parametrize("name", ["attention", "attention_with_lse", "attention_forward"])
def test_every_operator_follows_autocast(name):
    x = make(SHAPE)
    with torch.autocast("cpu", torch.bfloat16):
        result = getattr(ops, name)(*x.qkv)
    out = result if name == "attention" else result[0]
    assert out.dtype == torch.bfloat16
    if name != "attention":
        assert result[1].dtype == torch.float32


def test_float64_inputs_are_left_alone():
    x = make(SHAPE, torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        out = ops.attention(*x.qkv)
    assert torch.equal(out, ops.attention(*x.qkv))


def test_bool_mask_is_left_alone():
    x = make(SHAPE)
    mask = torch.rand(33, 35) < 0.5
    with torch.autocast("cpu", torch.bfloat16):
        out = ops.attention(*x.qkv, attn_mask=mask)
    assert torch.equal(out, ops.attention(*(t.bfloat16() for t in x.qkv), attn_mask=mask))


def test_disabled_autocast_region_keeps_float32():
    x = make(SHAPE)
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert ops.attention(*x.qkv).dtype == torch.float32


def test_backward_inside_autocast_equals_backward_outside():
    x = make(SHAPE)

    def gradients(inside):
        inputs = [t.clone().requires_grad_() for t in x.qkv]
        with torch.autocast("cpu", torch.bfloat16):
            loss = ops.attention(*inputs).float().square().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return [t.grad for t in inputs]

    assert all(torch.equal(a, b) for a, b in zip(gradients(True), gradients(False), strict=True))


def test_compiled_autocast_region_runs_in_the_autocast_dtype():
    x = make(SHAPE)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(*qkv):
        with torch.autocast("cpu", torch.bfloat16):
            return ops.attention(*qkv)

    out = call(*x.qkv)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, ops.attention(*(t.bfloat16() for t in x.qkv)))
