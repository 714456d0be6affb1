"""Gradients against the reference: sizes, dtypes, bands, LSE gradient, subsets, extreme logits."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from test_forward import BANDS, band_id

from cases import DTYPES, SHAPES, Shape, check, dtype_id, make, run_fused
from reference import LOW_PRECISION, Result, assert_close_to_reference, run

ops = torch.ops.fused_attention


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backward_of_any_size_equals_reference(isa, shape, dtype):
    check(*make(shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("shape", SHAPES[3:], ids=str)
def test_causal_backward_of_any_size_equals_reference(isa, shape, dtype):
    check(*make(shape, dtype), is_causal=True, diagonal_offset=shape.seq_k - shape.seq_q)


@pytest.mark.parametrize("dtype", LOW_PRECISION, ids=dtype_id)
def test_half_precision_is_as_accurate_as_sdpa(isa, dtype):
    x = make(Shape(1, 4, 4, 256, 256, 64, 64), dtype)
    want = run(*x.qkv, x.grad_output)
    ours = run_fused(*x.qkv, x.grad_output)
    leaves = [t.detach().requires_grad_() for t in x.qkv]
    output = F.scaled_dot_product_attention(*leaves)
    theirs = Result(output, None, *torch.autograd.grad(output, leaves, x.grad_output))
    for name in ("output", "grad_query", "grad_key", "grad_value"):
        right, error, limit = (getattr(r, name).detach().double() for r in (want, ours, theirs))
        # Norms over 65536 elements: two draws of the same roundings differ by a percent.
        assert (error - right).norm() <= 1.05 * (limit - right).norm(), name


@pytest.mark.parametrize("lengths", [(31, 127), (129, 33), (130, 130), (1, 70)], ids=str)
@pytest.mark.parametrize("band", BANDS, ids=band_id)
def test_backward_under_a_band_equals_reference(isa, band, lengths):
    check(*make(Shape(1, 2, 1, *lengths, 16, 16)), **band)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_gradient_of_the_output_alone_equals_reference(isa, dtype):
    x = make(Shape(2, 4, 2, 37, 41, 24, 16), dtype)
    check(*x.qkv, x.grad_output, None, is_causal=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_gradient_of_the_logsumexp_alone_equals_reference(isa, dtype):
    x = make(Shape(2, 4, 2, 37, 41, 24, 16), dtype)
    result = check(*x.qkv, None, x.grad_logsumexp, is_causal=True)
    assert (result.grad_value == 0).all()


@pytest.mark.parametrize("need", list(itertools.product([True, False], repeat=3)), ids=str)
def test_backward_operator_computes_only_what_the_mask_asks_for(isa, nan_filled, need):
    x = make(Shape(2, 4, 2, 37, 41, 24, 16))
    output, logsumexp, rng_state = ops.attention_forward(*x.qkv, is_causal=True)
    grads = ops.attention_backward(
        x.grad_output,
        x.grad_logsumexp,
        *x.qkv,
        output,
        logsumexp,
        rng_state,
        None,
        0.0,
        True,
        [*need, False, False, False],
    )
    assert len(grads) == 6
    assert all(g.numel() == 0 for g in grads[3:])
    for wanted, grad in zip(need, grads[:3], strict=True):
        assert wanted or grad.numel() == 0
    asked = [g if wanted else None for wanted, g in zip(need, grads[:3], strict=True)]
    assert_close_to_reference(Result(output, logsumexp, *asked), *x, is_causal=True)


@pytest.mark.parametrize("fill", [-1e30, torch.finfo(torch.float32).min, -1e9, 1e30])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_rows_with_the_same_huge_bias_everywhere_keep_their_gradients(isa, dtype, fill):
    # The bias swallows the scores: all weights are 1 / n. exp(score - LSE) would be 1 instead.
    seq_k = 70
    x = make(Shape(1, 2, 1, 20, seq_k, 16, 16), dtype)
    mask = torch.zeros(20, seq_k)
    mask[3:9] = fill
    result = check(*x.qkv, x.grad_output, attn_mask=mask)
    mean = x.value.double().mean(2, keepdim=True).expand(1, 2, 6, 16)
    if abs(fill) >= 1e30:  # the bias leaves nothing of the scores
        tolerance = 1e-5 if dtype in (torch.float32, torch.float64) else 1e-2
        torch.testing.assert_close(result.output[:, :, 3:9].double(), mean, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=dtype_id)
def test_huge_bias_on_some_keys_leaves_the_others_exact(isa, dtype):
    x = make(Shape(1, 2, 2, 33, 70, 16, 16), dtype)
    mask = torch.zeros(33, 70)
    mask[:, ::3] = torch.finfo(torch.float32).min
    mask[5] = torch.finfo(torch.float32).min
    result = check(*x, attn_mask=mask)
    assert not any(t.isnan().any() for t in result)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=dtype_id)
def test_gradients_of_equal_logits_of_a_million_are_those_of_uniform_weights(isa, dtype):
    seq = 50
    query = torch.full((1, 1, seq, 4), 1000.0, dtype=dtype)
    key = torch.full((1, 1, seq, 4), 250.0, dtype=dtype)
    value, grad = torch.randn(2, 1, 1, seq, 8, dtype=dtype)
    result = check(query, key, value, grad, scale=1.0)
    want = grad.mean(2, keepdim=True).expand_as(grad)
    torch.testing.assert_close(result.grad_value, want, atol=1e-5, rtol=1e-5)


def test_saturated_logits_give_one_hot_weights_and_their_gradients(isa):
    seq = 40
    query = key = 1000.0 * torch.eye(seq).view(1, 1, seq, seq)
    value, grad = torch.randn(2, 1, 1, seq, 8)
    result = check(query, key, value, grad, scale=1.0)
    torch.testing.assert_close(result.output, value)
    torch.testing.assert_close(result.grad_value, grad)
    assert result.grad_query.abs().max() < 0.01  # of terms of size 1000


def test_gradient_that_is_expanded_from_a_scalar_equals_its_dense_copy(isa):
    x = make(Shape(1, 2, 2, 20, 30, 8, 8))
    grad = torch.ones(()).expand(1, 2, 20, 8)
    check(*x.qkv, grad)


def test_sum_of_output_gives_value_gradient_equal_to_column_sums(isa):
    x = make(Shape(1, 1, 1, 30, 40, 8, 8))
    weights = torch.softmax(x.query @ x.key.transpose(-1, -2) / math.sqrt(8), -1)
    result = run_fused(*x.qkv, torch.ones_like(x.grad_output))
    want = weights.sum(2).unsqueeze(-1).expand_as(result.grad_value)
    torch.testing.assert_close(result.grad_value, want, atol=1e-5, rtol=1e-5)
