"""Field cases F01-F09: rows without keys, NaN, extreme logits; shape, stride and dtype of masks."""

import math

import pytest
import torch

from cases import DTYPES, Inputs, Shape, check, dtype_id, make, run_fused

ops = torch.ops.fused_attention
INF, NAN = math.inf, math.nan


def additive(keep, dtype=torch.float32):
    return torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, -INF)


@pytest.mark.parametrize("form", [lambda m: m, additive], ids=["bool", "additive"])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("empty", [[5], [3, 4, 5], [0, 1, 2, 3, 4, 5]], ids=str)
@pytest.mark.parametrize("heads", [1, 2])
def test_f01_bool_mask_with_all_false_rows_gives_zero(isa, heads, empty, dtype, form):
    x = make(Shape(1, 2, 2, 6, 6, 8, 8), dtype)
    keep = torch.ones(1, heads, 6, 6, dtype=torch.bool).tril()
    keep[:, :, empty] = False
    result = check(*x, attn_mask=form(keep))
    assert (result.output[:, :, empty] == 0).all()
    assert (result.logsumexp[:, :, empty] == -INF).all()
    one = check(
        *Inputs(
            *(t[:, :, 5:] if t.size(2) == 6 and n != 1 and n != 2 else t for n, t in enumerate(x))
        ),
        attn_mask=form(keep[:, :, 5:]),
    )
    assert (one.output == 0).all()


@pytest.mark.parametrize("gradient_on_empty_rows", [False, True])
def test_f02_one_fully_masked_row_leaves_every_gradient_finite_and_right(
    isa, gradient_on_empty_rows
):
    keep = torch.zeros(2, 1, 6, 6, dtype=torch.bool)
    for i in range(6):
        keep[:, :, i, max(i - 1, 0) : i + 1] = True
    keep[1, :, :, 3:] = False
    x = make(Shape(2, 2, 2, 6, 6, 8, 8))
    grad = torch.ones_like(x.grad_output)
    if not gradient_on_empty_rows:
        grad[1, :, 4:] = 0.0
    result = check(*x.qkv, grad, attn_mask=additive(keep))
    assert (result.grad_query[1, :, 4:] == 0).all()

    weight = torch.randn(8, 8, requires_grad=True)
    source = torch.randn(2, 2, 6, 8)
    projected = source @ weight
    out = ops.attention(projected, projected, projected, attn_mask=additive(keep))
    used = torch.ones(2, 1, 6, 1)
    used[1, :, 4:] = 0.0
    (got,) = torch.autograd.grad((out * used).sum(), weight)
    assert got.isfinite().all()
    without = run_fused(*[(source @ weight.detach())] * 3, used.expand(2, 2, 6, 8), attn_mask=keep)
    want = torch.einsum("bhsd,bhse->de", source, sum(without[2:]))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("spoil", [1e10, NAN, INF])
@pytest.mark.parametrize("where", ["key", "value"])
@pytest.mark.parametrize("shape", [(1, 2, 4), (1, 1, 2, 4)], ids=str)
def test_f03_nan_in_a_masked_key_or_value_moves_nothing(isa, shape, where, spoil):
    inputs = [torch.randn(shape) for _ in range(3)]
    grad = torch.randn(shape)
    for form in (lambda m: m, additive):
        mask = form(torch.tensor([True, False]))
        results = []
        for value in (0.5, spoil):
            q, k, v = (t.clone() for t in inputs)
            target = k if where == "key" else v
            target[..., 1, slice(0, 1) if where == "key" else slice(None)] = value
            leaves = [t.requires_grad_() for t in (q, k, v)]
            out, logsumexp = ops.attention_with_lse(*leaves, attn_mask=mask)
            grads = torch.autograd.grad(out, leaves, grad)
            assert (grads[1][..., 1, :] == 0).all()
            assert (grads[2][..., 1, :] == 0).all()
            results.append((out, logsumexp, *grads))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_f03_nan_beyond_the_diagonal_and_in_the_last_partial_tile_moves_nothing(isa):
    x = make(Shape(1, 1, 1, 67, 67, 16, 16))
    keep = torch.arange(67) < 60
    clean = run_fused(*x, is_causal=True, attn_mask=keep)
    key, value = x.key.clone(), x.value.clone()
    key[:, :, 60:], value[:, :, 60:] = NAN, INF
    got = run_fused(x.query, key, value, *x[3:], is_causal=True, attn_mask=keep)
    assert all(torch.equal(a, b) for a, b in zip(got, clean, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_f04_visible_nan_makes_a_nan_row_and_no_zero(isa, dtype):
    x = make(Shape(2, 4, 4, 16, 16, 8, 8), dtype)
    clean = run_fused(*x.qkv)

    everywhere = run_fused(torch.full_like(x.query, NAN), x.key, x.value)
    assert everywhere.output.isnan().all()
    assert everywhere.logsumexp.isnan().all()

    query = x.query.clone()
    query[0, 0, 3] = NAN
    one_row = run_fused(query, x.key, x.value)
    spoilt = torch.zeros(2, 4, 16, dtype=torch.bool)
    spoilt[0, 0, 3] = True
    assert one_row.output[spoilt].isnan().all()
    assert torch.equal(one_row.output[~spoilt], clean.output[~spoilt])
    assert torch.equal(one_row.logsumexp[~spoilt], clean.logsumexp[~spoilt])

    key = x.key.clone()
    key[0, 0, 5] = NAN
    one_key = run_fused(x.query, key, x.value)
    assert one_key.output[0, 0].isnan().all()
    assert torch.equal(one_key.output[:, 1:], clean.output[:, 1:])

    query, key = x.query.clone().abs(), x.key.clone()
    key[0, 0, 5] = INF
    infinite = run_fused(query, key, x.value)
    assert infinite.output[0, 0].isnan().all()
    assert infinite.output[1].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_f05_huge_equal_logits_keep_gradients_finite(isa, dtype):
    filled = torch.full((1, 2, 50, 64), 1000.0, dtype=dtype)
    grad = torch.randn(1, 2, 50, 64).to(dtype)
    result = check(filled, filled, filled, grad)
    assert all(t.isfinite().all() for t in result)
    # dP and delta are one sum of 64 products, twice: what is left are the roundings of both.
    rounding = (1 + math.sqrt(64)) * 2**-24 * 1000 * grad.double().abs().sum(-1).max()
    for gradient in (result.grad_query, result.grad_key):
        assert gradient.abs().max() < 2 * rounding * 1000 / math.sqrt(64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=dtype_id)
def test_f05_rebuilt_weights_of_large_random_logits_never_exceed_one(isa, dtype):
    x = make(Shape(1, 2, 2, 50, 50, 64, 64))
    inputs = [(x.query * 300).to(dtype), (x.key * 300).to(dtype)]
    ones = torch.ones(1, 2, 50, 64, dtype=dtype)
    # With v = 0 and grad_out = 1, dv is the sum of each key's weights: all keys together get Sq.
    result = run_fused(*inputs, torch.zeros_like(ones), ones)
    assert result.grad_value.isfinite().all()
    total = result.grad_value.double().sum(2)
    torch.testing.assert_close(total, torch.full_like(total, 50.0), atol=0.5, rtol=0)
    assert result.grad_value.max() <= 50.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=dtype_id)
@pytest.mark.parametrize("mask_dtype", ["same", torch.bool], ids=str)
def test_f06_slice_of_a_wider_mask_equals_the_contiguous_mask_bit_for_bit(isa, mask_dtype, dtype):
    x = make(Shape(1, 16, 16, 43, 43, 16, 16), dtype)
    boolean = mask_dtype == torch.bool
    mask = torch.rand(1, 16, 43, 43) < 0.7 if boolean else torch.randn(1, 16, 43, 43).to(dtype)
    want = check(*x, attn_mask=mask)
    for start in (0, 3):
        buffer = torch.full((1, 16, 43, 48), True if boolean else NAN, dtype=mask.dtype)
        view = buffer[..., start : start + 43].copy_(mask)
        got = run_fused(*x, attn_mask=view)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_f07_bias_layouts_may_change_between_calls_of_one_compiled_function(backend):
    torch._dynamo.reset()
    x = make(Shape(2, 4, 4, 9, 9, 16, 16))
    biases = [
        torch.randn(2, 4, 9, 9),
        torch.randn(2, 1, 9, 1).expand(2, 4, 9, 9),
        torch.randn(2, 1, 9, 9).transpose(-1, -2),
    ]
    call = ops.attention_with_lse
    if backend != "eager":
        call = torch.compile(lambda *a: ops.attention_with_lse(*a), backend=backend, fullgraph=True)
    for index in (0, 1, 2, 0):
        leaves = [t.clone().requires_grad_() for t in x.qkv]
        output, logsumexp = call(*leaves, biases[index])
        grads = torch.autograd.grad(output, leaves, x.grad_output)
        want = check(*x.qkv, x.grad_output, attn_mask=biases[index])
        torch.testing.assert_close((output, logsumexp, *grads), tuple(want), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dim", [32, 7])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=dtype_id)
def test_f08_float32_mask_meets_half_precision_query(isa, dtype, dim):
    x = make(Shape(1, 8, 8, 64, 64, dim, dim), dtype)
    mask = torch.zeros(64, 64)
    mask[torch.rand(64, 64) < 0.2] = -1e4
    mask[torch.rand(64, 64) < 0.2] = torch.finfo(torch.float32).min
    mask[9] = torch.finfo(torch.float32).min  # stays finite: the row is not empty
    result = check(*x.qkv, x.grad_output, attn_mask=mask)
    assert result.logsumexp.isfinite().all()
    with torch.autocast("cpu", dtype):
        out = ops.attention(*(t.float() for t in x.qkv), attn_mask=mask)
    assert torch.equal(out, result.output)


def test_f09_causal_flag_and_explicit_mask_both_apply(isa):
    x = make(Shape(2, 2, 2, 6, 6, 8, 8))
    padding = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    padding[1, ..., 4:] = False
    got = check(*x, attn_mask=padding, is_causal=True)
    both = padding & torch.ones(6, 6, dtype=torch.bool).tril()
    for a, b in zip(got, run_fused(*x, attn_mask=both), strict=True):
        torch.testing.assert_close(a, b)
    check(*x, attn_mask=torch.randn(2, 2, 6, 6), is_causal=True)
