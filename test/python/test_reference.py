"""The oracle itself, against torch's own op and hand-written rows."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import reference
from cases import Shape, make


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3, 0.0, -0.7])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
def test_reference_equals_math_sdpa_forward_and_backward(heads, scale, is_causal):
    x = make(Shape(2, *heads, 7, 9, 5, 6), torch.float64)
    leaves = [t.clone().requires_grad_() for t in x.qkv]
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(
            *leaves, is_causal=is_causal, scale=scale, enable_gqa=True
        )
    grads = torch.autograd.grad(out, leaves, x.grad_output)
    mine = reference.run(*x.qkv, x.grad_output, is_causal=is_causal, scale=scale)
    torch.testing.assert_close(mine.output, out)
    torch.testing.assert_close(mine[2:], grads)


def test_reference_logsumexp_is_natural_and_differentiable():
    x = make(Shape(1, 2, 2, 4, 6, 3, 3), torch.float64)
    q, k = (t.clone().requires_grad_() for t in x.qkv[:2])
    want = torch.logsumexp(q @ k.transpose(-1, -2) / math.sqrt(3), -1)
    grads = torch.autograd.grad(want, (q, k), x.grad_logsumexp)
    mine = reference.run(*x.qkv, None, x.grad_logsumexp)
    torch.testing.assert_close(mine.logsumexp, want)
    torch.testing.assert_close((mine.grad_query, mine.grad_key), grads)
    assert torch.equal(mine.grad_value, torch.zeros_like(mine.grad_value))


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"is_causal": True}, ["#...", "##..", "###."]),
        ({"is_causal": True, "diagonal_offset": 1}, ["##..", "###.", "####"]),
        ({"is_causal": True, "diagonal_offset": -2}, ["....", "....", "#..."]),
        ({"window_size": (1, 0)}, ["#...", "##..", ".##."]),
        ({"window_size": (0, 1), "diagonal_offset": 2}, ["..##", "...#", "...."]),
        ({"window_size": (1, -1)}, ["####", "####", ".###"]),
        ({"is_causal": True, "window_size": (1, 5)}, ["#...", "##..", ".##."]),
        ({"diagonal_offset": 7}, ["####"] * 3),
        ({"is_causal": True, "diagonal_offset": reference.INT64_MAX}, ["####"] * 3),
        ({"window_size": (0, 0), "diagonal_offset": reference.INT64_MIN}, ["...."] * 3),
    ],
)
def test_visible_keys_are_those_of_the_picture(options, want):
    got = reference.visible_keys(3, 4, **options)
    assert ["".join(".#"[int(x)] for x in row) for row in got] == want


def test_reference_ignores_hidden_nan_in_values_and_gradients():
    x = make(Shape(1, 1, 1, 5, 6, 3, 2), torch.float64)
    clean = reference.run(*x.qkv, x.grad_output, is_causal=True)
    key, value = x.key.clone(), x.value.clone()
    key[..., 5, :], value[..., 5, :] = math.nan, math.inf
    got = reference.run(x.query, key, value, x.grad_output, is_causal=True)
    for a, b in zip(got, clean, strict=True):
        torch.testing.assert_close(a, b)
    assert (got.grad_key[..., 5, :] == 0).all()
    assert (got.grad_value[..., 5, :] == 0).all()


def test_reference_gives_an_empty_row_zero_and_minus_infinity():
    x = make(Shape(1, 1, 1, 3, 4, 2, 2), torch.float64)
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1] = False
    grad = x.grad_output.clone()
    grad[..., 1, :] = math.nan
    got = reference.run(*x.qkv, grad, attn_mask=mask)
    assert (got.output[..., 1, :] == 0).all()
    assert (got.logsumexp[..., 1] == -math.inf).all()
    assert (got.grad_query[..., 1, :] == 0).all()
    assert all(t.isfinite().all() for t in got[2:])
    float_mask = torch.where(mask, 0.0, -math.inf)
    for a, b in zip(reference.run(*x.qkv, grad, attn_mask=float_mask), got, strict=True):
        torch.testing.assert_close(a, b)


def test_allowed_error_is_twice_the_plain_error_plus_the_floor():
    want = torch.tensor([1.0, 2.0], dtype=torch.float64)
    plain = torch.tensor([1.25, 2.0])
    allowed = reference.allowed_error
    assert allowed("output", want, plain, torch.float32) == pytest.approx(0.5, abs=2e-5)
    assert allowed("output", want, want, torch.float64) < 2e-12
    assert allowed("output", want, want, torch.bfloat16) < 2**-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_small_faults_are_not_within_the_tolerance(dtype):
    x = make(Shape(1, 2, 1, 40, 50, 32, 32), dtype)
    right = reference.run(*x)
    cast = [t.to(dtype) for t in right]
    cast[1] = right.logsumexp.to(x.grad_logsumexp.dtype)
    reference.assert_close_to_reference(reference.Result(*cast), *x)
    factor = 1.03 if dtype == torch.bfloat16 else 1.0001 if dtype == torch.float32 else 1 + 1e-10
    for index in range(5):
        wrong = list(cast)
        wrong[index] = wrong[index] * factor
        with pytest.raises(AssertionError):
            reference.assert_close_to_reference(reference.Result(*wrong), *x)


def test_comparison_rejects_wrong_values_shapes_and_nan():
    want = torch.tensor([1.0, math.nan, -math.inf], dtype=torch.float64)
    reference.assert_close("x", want.clone(), want, 0.0)
    for wrong in ([1.1, math.nan, -math.inf], [1.0, 0.0, -math.inf], [1.0, math.nan, -1e38]):
        with pytest.raises(AssertionError):
            reference.assert_close("x", torch.tensor(wrong), want, 1e-3)
    with pytest.raises(AssertionError):
        reference.assert_close("x", want[:2], want, 1.0)
