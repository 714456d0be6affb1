"""Any strides in, the query's stride order out; the fake route agrees."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cases import DTYPES, Shape, dtype_id, make, run_fused

ops = torch.ops.fused_attention
SHAPE = Shape(2, 4, 2, 33, 41, 24, 16)


def strided(t, how):
    """The values of `t` (B, H, S, D) in another layout, NaN wherever the view does not reach."""
    b, h, s, d = t.shape

    def within(shape, *index):
        buffer = torch.full(shape, torch.nan, dtype=t.dtype)
        return buffer[index].copy_(t)

    if how == "bshd":
        return t.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "transposed d":
        return t.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == "every second d":
        return within((b, h, s, 2 * d), ..., slice(0, None, 2))
    if how == "every third s":
        return within((b, h, 3 * s, d), slice(None), slice(None), slice(1, None, 3))
    if how == "odd row":
        return within((b, h, s, d + 3), ..., slice(2, 2 + d))
    if how == "batch innermost":
        return t.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
    if how == "heads outermost":
        return t.transpose(0, 1).contiguous().transpose(0, 1)
    raise AssertionError(how)


LAYOUTS = (
    "bshd",
    "transposed d",
    "every second d",
    "every third s",
    "odd row",
    "batch innermost",
    "heads outermost",
)
NAMES = ("query", "key", "value", "grad_output")


@pytest.mark.parametrize("which", [*NAMES, "all"])
@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_layout_of_an_operand_does_not_change_the_result(isa, dtype, how, which):
    x = make(SHAPE, dtype)
    want = run_fused(*x, is_causal=True)
    changed = [
        strided(t, how) if which in (name, "all") else t
        for name, t in zip(NAMES, x[:4], strict=True)
    ]
    got = run_fused(*changed, x.grad_logsumexp, is_causal=True)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, **close(dtype))


def close(dtype):
    """Another order of sums is all that a layout may change."""
    return {
        torch.float32: {"atol": 1e-5, "rtol": 1e-5},
        torch.float64: {"atol": 1e-12, "rtol": 1e-12},
        torch.bfloat16: {"atol": 1e-2, "rtol": 2**-7},
        torch.float16: {"atol": 2e-3, "rtol": 2**-10},
    }[dtype]


def test_non_contiguous_logsumexp_gradient_is_read_by_its_strides(isa):
    x = make(SHAPE)
    grad = torch.full((2, 33, 4), torch.nan).transpose(1, 2).copy_(x.grad_logsumexp)
    want = run_fused(*x)
    for a, b in zip(run_fused(*x[:4], grad), want, strict=True):
        torch.testing.assert_close(a, b, **close(torch.float32))
    expanded = torch.ones(()).expand(2, 4, 33)
    want = run_fused(*x[:4], torch.ones(2, 4, 33))
    for a, b in zip(run_fused(*x[:4], expanded), want, strict=True):
        torch.testing.assert_close(a, b, **close(torch.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_expanded_operands_equal_their_dense_copies(isa, dtype):
    x = make(Shape(1, 1, 1, 1, 1, 24, 24), dtype)
    many = make(Shape(2, 4, 4, 33, 41, 24, 24), dtype)
    query, key, value = (a.expand_as(b) for a, b in zip(x.qkv, many.qkv, strict=True))
    for inputs in (
        (query, many.key, many.value),
        (many.query, key, many.value),
        (query, key, value),
    ):
        dense = tuple(t.contiguous() for t in inputs)
        want = run_fused(*dense, many.grad_output)
        for a, b in zip(run_fused(*inputs, many.grad_output), want, strict=True):
            torch.testing.assert_close(a, b, **close(dtype))


def test_value_may_be_a_view_of_key(isa):
    key = torch.randn(1, 1, 70, 192)
    query, grad = torch.randn(1, 4, 33, 192), torch.randn(1, 4, 33, 128)
    want = run_fused(query, key, key[..., :128].clone(), grad)
    for a, b in zip(run_fused(query, key, key[..., :128], grad), want, strict=True):
        torch.testing.assert_close(a, b, **close(torch.float32))


def test_same_tensor_as_query_key_and_value_gets_the_sum_of_gradients(isa):
    x = torch.randn(1, 2, 20, 16, requires_grad=True)
    grad = torch.randn(1, 2, 20, 16)
    (total,) = torch.autograd.grad(ops.attention(x, x, x), x, grad)
    parts = run_fused(x.detach(), x.detach(), x.detach(), grad)[2:]
    torch.testing.assert_close(total, sum(parts), atol=1e-5, rtol=1e-5)


def order(t):
    """Dims from the outermost to the innermost; size-1 dims do not count."""
    return [d for d in sorted(range(t.dim()), key=lambda d: -t.stride(d)) if t.size(d) > 1]


@pytest.mark.parametrize("how", LAYOUTS)
def test_output_is_dense_in_the_stride_order_of_the_query(how):
    x = make(SHAPE)
    query = strided(x.query, how)
    out = ops.attention(query, x.key, x.value)
    assert order(out) == order(query)
    assert sorted(out.stride())[0] == 1
    assert out.untyped_storage().nbytes() == out.nbytes


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize(
    "shape", [SHAPE, Shape(1, 4, 2, 1, 41, 24, 16), Shape(2, 1, 1, 3, 5, 1, 1)], ids=str
)
def test_fake_forward_and_backward_report_the_real_metadata(how, shape):
    x = make(shape)
    query, key, value, grad = (strided(t, how) for t in x[:4])

    def both(q, k, v, g, gl):
        out, logsumexp, rng = ops.attention_forward(q, k, v, is_causal=True)
        need = [True, True, True, False, False, False]
        grads = ops.attention_backward(g, gl, q, k, v, out, logsumexp, rng, None, 0.0, True, need)
        partial = ops.attention_backward(
            g, None, q, k, v, out, logsumexp, rng, None, 0.0, True, [False, True] + [False] * 4
        )
        return [out, logsumexp, rng, *grads, *partial, ops.attention(q, k, v)]

    real = both(query, key, value, grad, x.grad_logsumexp)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in (query, key, value, grad, x.grad_logsumexp)]
        fake = both(*fakes)
    meta = both(
        *(
            t.to("meta").as_strided(t.shape, t.stride())
            for t in (query, key, value, grad, x.grad_logsumexp)
        )
    )
    for r, f, m in zip(real, fake, meta, strict=True):
        assert (r.shape, r.stride(), r.dtype) == (f.shape, f.stride(), f.dtype)
        assert (r.shape, r.stride(), r.dtype) == (m.shape, m.stride(), m.dtype)
        assert f.device == r.device
        assert m.device.type == "meta"


def test_gradients_do_not_alias_the_inputs_or_each_other():
    x = make(Shape(1, 2, 2, 5, 5, 8, 8))
    result = run_fused(*x)
    storages = {t.untyped_storage().data_ptr() for t in (*result, *x)}
    assert len(storages) == len(result) + len(x)
