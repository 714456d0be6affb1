"""Masks: every broadcast, dtype and stride, with causal and window, forward and backward."""

import math

import pytest
import torch

from cases import DTYPES, Shape, check, dtype_id, make, run_fused

SHAPE = Shape(2, 4, 2, 33, 45, 16, 16)
BROADCASTS = (
    (45,),
    (1,),
    (33, 45),
    (33, 1),
    (1, 45),
    (4, 33, 45),
    (4, 1, 45),
    (1, 33, 1),
    (2, 4, 33, 45),
    (2, 1, 33, 45),
    (2, 1, 1, 45),
    (2, 4, 1, 45),
    (2, 4, 33, 1),
    (1, 4, 33, 1),
    (2, 1, 33, 1),
    (1, 1, 1, 1),
)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def random_mask(shape, dtype, share=0.7):
    if dtype == torch.bool:
        return torch.rand(shape) < share
    mask = torch.randn(shape).to(dtype)
    return torch.where(torch.rand(shape) < share, mask, -math.inf)


@pytest.mark.parametrize("mask_dtype", [torch.bool, *FLOATS], ids=dtype_id)
@pytest.mark.parametrize("shape", BROADCASTS, ids=str)
def test_mask_of_any_broadcast_shape_equals_reference(isa, shape, mask_dtype):
    check(*make(SHAPE), attn_mask=random_mask(shape, mask_dtype))


@pytest.mark.parametrize("mask_dtype", [torch.bool, *FLOATS], ids=dtype_id)
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_mask_of_any_dtype_meets_query_of_any_dtype(isa, dtype, mask_dtype):
    check(*make(SHAPE, dtype), attn_mask=random_mask((2, 1, 33, 45), mask_dtype))


@pytest.mark.parametrize("shape", [(0,), (33, 0)], ids=str)
def test_empty_mask_with_no_keys_gives_zeros(shape):
    x = make(Shape(2, 4, 2, 33, 0, 16, 16))
    result = check(*x, attn_mask=torch.ones(shape, dtype=torch.bool))
    assert (result.output == 0).all()
    assert (result.logsumexp == -math.inf).all()


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float32], ids=dtype_id)
@pytest.mark.parametrize(
    "band",
    [
        {"is_causal": True},
        {"is_causal": True, "diagonal_offset": -7},
        {"window_size": (5, 9)},
        {"is_causal": True, "window_size": (11, 0), "diagonal_offset": 12},
    ],
    ids=str,
)
def test_mask_and_band_both_apply(isa, band, mask_dtype):
    check(*make(SHAPE), attn_mask=random_mask((2, 4, 33, 45), mask_dtype), **band)


def layouts(mask):
    """The same values under other strides and offsets; what lies between them would give NaN."""
    filler = False if mask.dtype == torch.bool else math.nan

    def within(*padded, step=1, start=0):
        buffer = torch.full((*mask.shape[:-2], *padded), filler, dtype=mask.dtype)
        view = buffer[
            ..., start : start + mask.shape[-2], start : start + step * mask.shape[-1] : step
        ]
        return view.copy_(mask)

    seq_q, seq_k = mask.shape[-2:]
    yield "transposed", mask.transpose(-1, -2).contiguous().transpose(-1, -2)
    yield "wide", within(seq_q, seq_k + 3)
    yield "offset", within(seq_q + 5, seq_k + 8, start=3)
    yield "every second", within(seq_q, 2 * seq_k, step=2)
    yield "heads inside", mask.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


@pytest.mark.parametrize("mask_dtype", [torch.bool, *FLOATS], ids=dtype_id)
def test_mask_layout_does_not_change_a_bit(isa, mask_dtype):
    x = make(SHAPE)
    mask = random_mask((2, 4, 33, 45), mask_dtype)
    want = run_fused(*x, attn_mask=mask)
    for name, view in layouts(mask):
        assert torch.equal(view, mask)
        for a, b in zip(run_fused(*x, attn_mask=view), want, strict=True):
            assert torch.equal(a, b), name


@pytest.mark.parametrize("mask_dtype", [torch.bool, *FLOATS], ids=dtype_id)
def test_expanded_mask_equals_its_dense_copy(isa, mask_dtype):
    x = make(SHAPE)
    for shape in BROADCASTS:
        mask = random_mask(shape, mask_dtype).expand(2, 4, 33, 45)
        want = run_fused(*x, attn_mask=mask.contiguous())
        for a, b in zip(run_fused(*x, attn_mask=mask), want, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mask_dtype", FLOATS, ids=dtype_id)
def test_minus_infinity_hides_exactly_as_false_does(isa, mask_dtype):
    x = make(SHAPE)
    shown = torch.rand(33, 45) < 0.5
    shown[4] = shown[32] = False
    value = x.value.clone()
    value[:, :, 7] = math.nan
    shown[:, 7] = False
    as_bool = run_fused(x.query, x.key, value, *x[3:], attn_mask=shown)
    hidden = torch.zeros(33, 45).masked_fill(~shown, -math.inf).to(mask_dtype)
    as_float = run_fused(x.query, x.key, value, *x[3:], attn_mask=hidden)
    for a, b in zip(as_float, as_bool, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
        assert torch.equal(a == 0, b == 0)
    assert (as_bool.output[:, :, [4, 32]] == 0).all()


def test_finite_numbers_of_a_wider_mask_dtype_stay_finite(isa):
    # float64's -1e300 is not a float32: it must not become -inf, which would hide the row.
    x = make(Shape(1, 1, 1, 3, 20, 8, 8))
    mask = torch.zeros(3, 20, dtype=torch.float64)
    mask[1] = -1e300
    mask[2, :10] = -1e300
    result = check(*x.qkv, x.grad_output, attn_mask=mask)
    assert result.logsumexp.isfinite().all()
    mean = x.value.mean(2)
    torch.testing.assert_close(result.output[:, :, 1], mean, atol=1e-5, rtol=1e-5)
    for dtype in (torch.bfloat16, torch.float16):
        result = run_fused(*(t.to(dtype) for t in x[:4]), attn_mask=mask)
        assert result.logsumexp.isfinite().all()
        assert all(t.isfinite().all() for t in result)


def test_largest_finite_numbers_in_the_mask_do_not_overflow(isa):
    x = make(Shape(1, 2, 2, 6, 40, 8, 8))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        lowest = torch.finfo(dtype).min
        mask = torch.zeros(6, 40, dtype=dtype)
        mask[1], mask[2, 1:], mask[3, 5] = lowest, lowest, -lowest
        mask[4] = -lowest
        result = run_fused(*x.qkv, x.grad_output, attn_mask=mask)
        assert not any(t.isnan().any() for t in result), dtype
        torch.testing.assert_close(result.output[:, :, 2], x.value[:, :, 0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(result.output[:, :, 3], x.value[:, :, 5], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("hidden", [math.nan, math.inf, -math.inf, 6e4])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_hidden_keys_and_values_have_no_influence(isa, dtype, hidden):
    x = make(Shape(2, 4, 2, 35, 70, 24, 24), dtype)
    keep = torch.rand(2, 1, 1, 70) < 0.6
    keep[:, :, :, 0] = True
    dead = ~keep[:, 0, 0]
    clean = run_fused(*x, attn_mask=keep)
    for spoil_key, spoil_value in ((True, False), (False, True), (True, True)):
        key, value = x.key.clone(), x.value.clone()
        if spoil_key:
            key.transpose(1, 2)[dead] = hidden
        if spoil_value:
            value.transpose(1, 2)[dead] = hidden
        for mask in (keep, torch.zeros(keep.shape).masked_fill(~keep, -math.inf)):
            got = run_fused(x.query, key, value, *x[3:], attn_mask=mask)
            for a, b in zip(got, clean, strict=True):
                assert torch.equal(a, b)
            assert (got.grad_key.transpose(1, 2)[dead] == 0).all()
            assert (got.grad_value.transpose(1, 2)[dead] == 0).all()


@pytest.mark.parametrize("hidden", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize(
    "band",
    [
        {"is_causal": True},
        {"is_causal": True, "diagonal_offset": -3},
        {"window_size": (9, 0)},
        {"window_size": (-1, 2), "diagonal_offset": 1},
    ],
    ids=str,
)
def test_keys_beyond_the_band_have_no_influence_on_rows_before_them(isa, band, dtype, hidden):
    # Keys from 60 on are beyond every row's band in 0..50, within the tile of the last rows.
    x = make(Shape(1, 2, 1, 50, 70, 24, 24), dtype)
    key, value = x.key.clone(), x.value.clone()
    key[:, :, 60:], value[:, :, 60:] = hidden, hidden
    clean = run_fused(*x, **band)
    got = run_fused(x.query, key, value, *x[3:], **band)
    for a, b in zip(got, clean, strict=True):
        assert torch.equal(a, b)
    assert (got.grad_key[:, :, 60:] == 0).all()
    assert (got.grad_value[:, :, 60:] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_nan_key_spoils_exactly_the_rows_that_see_it(isa, dtype):
    x = make(Shape(1, 1, 1, 70, 70, 16, 16), dtype)
    for spoil_key in (True, False):
        key, value = x.key.clone(), x.value.clone()
        (key if spoil_key else value)[:, :, 40] = math.nan
        clean = run_fused(*x.qkv, is_causal=True)
        got = run_fused(x.query, key, value, is_causal=True)
        assert torch.equal(got.output[:, :, :40], clean.output[:, :, :40])
        assert got.output[:, :, 40:].isnan().all()
        assert torch.equal(got.logsumexp[:, :, :40], clean.logsumexp[:, :, :40])


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_key_gradient_of_rows_before_a_nan_is_untouched_by_it(isa, dtype):
    # Rows 0..39 do not see key 40: their query gradients stay exact.
    x = make(Shape(1, 1, 1, 70, 70, 16, 16), dtype)
    key = x.key.clone()
    key[:, :, 40] = math.nan
    clean = run_fused(*x, is_causal=True)
    got = run_fused(x.query, key, x.value, *x[3:], is_causal=True)
    assert torch.equal(got.grad_query[:, :, :40], clean.grad_query[:, :, :40])


@pytest.mark.parametrize("how", ["bool", "float", "band"])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_nan_gradient_or_query_of_an_empty_row_has_no_influence(isa, dtype, how):
    x = make(Shape(1, 4, 2, 40, 35, 16, 16), dtype)
    if how == "band":
        options = {"is_causal": True, "diagonal_offset": -9}
        empty = torch.arange(40) < 9
    else:
        empty = torch.zeros(40, dtype=torch.bool)
        empty[[0, 17, 39]] = True
        shown = ~empty.view(40, 1).expand(40, 35)
        mask = shown if how == "bool" else torch.zeros(40, 35).masked_fill(~shown, -math.inf)
        options = {"attn_mask": mask}
    clean = check(*x, **options)
    query, grad, grad_lse = x.query.clone(), x.grad_output.clone(), x.grad_logsumexp.clone()
    for spoilt in (query, grad, grad_lse):
        spoilt[:, :, empty] = math.nan
    got = run_fused(query, x.key, x.value, grad, grad_lse, **options)
    for a, b in zip(got, clean, strict=True):
        assert torch.equal(a, b)
    assert (got.output[:, :, empty] == 0).all()
    assert (got.grad_query[:, :, empty] == 0).all()
    assert (got.logsumexp[:, :, empty] == -math.inf).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_all_rows_empty_gives_zeros_everywhere(isa, dtype):
    x = make(Shape(2, 4, 2, 40, 35, 16, 16), dtype)
    for mask in (torch.zeros(35, dtype=torch.bool), torch.full((40, 35), -math.inf)):
        result = check(*x, attn_mask=mask)
        assert (result.logsumexp == -math.inf).all()
        assert all((t == 0).all() for t in (result.output, *result[2:]))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_what_lies_behind_the_last_key_is_never_used(isa, dtype):
    # 41 keys are no multiple of any tile; the buffer goes on with NaN.
    x = make(Shape(1, 2, 1, 37, 41, 19, 21), dtype)
    key = torch.full((1, 1, 128, 64), math.nan, dtype=dtype)
    value, query = key.clone(), torch.full((1, 2, 128, 64), math.nan, dtype=dtype)
    grad = query.clone()
    key, value = key[:, :, :41, :19].copy_(x.key), value[:, :, :41, :21].copy_(x.value)
    query, grad = query[:, :, :37, :19].copy_(x.query), grad[:, :, :37, :21].copy_(x.grad_output)
    want = run_fused(*x)
    got = run_fused(query, key, value, grad, x.grad_logsumexp)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    check(query, key, value, grad, x.grad_logsumexp, is_causal=True)


def test_bool_mask_bytes_other_than_one_count_as_true(isa):
    x = make(Shape(1, 1, 1, 5, 20, 8, 8))
    mask = torch.tensor([0, 1, 2, 128, 255] * 4, dtype=torch.uint8)
    got = run_fused(*x.qkv, attn_mask=mask.view(torch.bool))
    want = run_fused(*x.qkv, attn_mask=mask != 0)
    assert torch.equal(got.output, want.output)


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float32], ids=dtype_id)
def test_mask_that_hides_nothing_changes_nothing_where_scores_overflow(isa, mask_dtype):
    q = torch.full((1, 1, 2, 4), -3e38)
    k = torch.full((1, 1, 5, 4), 1e30)
    k[..., 3, :] = -1e-30
    v = torch.randn(1, 1, 5, 4)
    for keys in (k, k[..., :3, :]):
        n = keys.size(-2)
        mask = torch.ones(2, n, dtype=torch.bool)
        if mask_dtype != torch.bool:
            mask = torch.zeros(2, n, dtype=mask_dtype)
        out, lse, *_ = run_fused(q, keys, v[..., :n, :], attn_mask=mask)
        plain_out, plain_lse, *_ = run_fused(q, keys, v[..., :n, :])
        assert torch.equal(out, plain_out)
        assert torch.equal(lse, plain_lse)
