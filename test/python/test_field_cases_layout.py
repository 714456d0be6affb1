"""Field cases F10-F14 and F16: alignment of causal and window, layouts, offsets beyond 2^31."""

import pytest
import torch

from cases import DTYPES, Shape, check, dtype_id, make, run_fused
from far_apart import far_apart

ops = torch.ops.fused_attention


def test_f10_decode_step_with_the_causal_flag_sees_the_whole_cache(isa):
    x = make(Shape(2, 4, 4, 1, 9, 16, 16))
    got = check(*x, is_causal=True, diagonal_offset=8)
    assert all(torch.equal(a, b) for a, b in zip(got, run_fused(*x), strict=True))
    top_left = run_fused(*x.qkv, is_causal=True)
    assert torch.equal(top_left.output, x.value[:, :, :1])

    value = torch.eye(6).expand(2, 4, 6, 6)
    two = ops.attention(
        torch.zeros(2, 4, 2, 16), torch.randn(2, 4, 6, 16), value, is_causal=True, diagonal_offset=4
    )
    assert ((two > 0).sum(-1) == torch.tensor([5, 6])).all()


def test_f10_full_sequence_agrees_with_decoding_token_by_token(isa):
    x = make(Shape(1, 4, 2, 40, 40, 16, 16))
    full = run_fused(*x.qkv, is_causal=True)
    for t in range(40):
        step = ops.attention(
            x.query[:, :, t : t + 1],
            x.key[:, :, : t + 1],
            x.value[:, :, : t + 1],
            is_causal=True,
            diagonal_offset=t,
        )
        torch.testing.assert_close(step, full.output[:, :, t : t + 1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_f11_more_queries_than_keys_gives_empty_first_rows(isa, dtype):
    x = make(Shape(1, 2, 2, 8, 5, 16, 16), dtype)
    result = check(*x, is_causal=True, diagonal_offset=-3)
    assert (result.output[:, :, :3] == 0).all()
    assert (result.grad_query[:, :, :3] == 0).all()
    assert (result.logsumexp[:, :, :3] == -torch.inf).all()


@pytest.mark.parametrize("length", [76, 34, 146])
def test_f11_many_queries_on_one_key_have_finite_gradients(isa, length):
    x = make(Shape(1, 1, 1, length, 1, 32, 32))
    inputs = [t * 3 for t in x.qkv]
    result = check(
        *inputs, torch.ones_like(x.grad_output), is_causal=True, diagonal_offset=1 - length
    )
    assert all(t.isfinite().all() for t in result[2:])
    assert (result.logsumexp[..., :-1] == -torch.inf).all()


@pytest.mark.parametrize("left", [0, 1, 3, 7, 100])
def test_f12_inclusive_window_of_l_shows_l_plus_one_keys(isa, left):
    value = torch.eye(8).expand(1, 1, 8, 8)
    zeros = torch.zeros(1, 1, 8, 4)
    out = ops.attention(zeros, zeros, value, is_causal=True, window_size=(left, 0))
    want = [min(i + 1, left + 1) for i in range(8)]
    assert (out[0, 0] > 0).sum(-1).tolist() == want
    symmetric = ops.attention(zeros, zeros, value, window_size=(left, left))
    want = [min(i, left) + 1 + min(7 - i, left) for i in range(8)]
    assert (symmetric[0, 0] > 0).sum(-1).tolist() == want


@pytest.mark.parametrize("which", ["query", "key", "value", "all"])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_f13_innermost_dimension_may_have_any_stride(isa, dtype, which):
    x = make(Shape(2, 3, 3, 11, 11, 16, 16), dtype)
    wide = make(Shape(2, 3, 3, 11, 11, 32, 32), dtype)
    for layout in ("transposed", "every other"):
        inputs = []
        for name, t, w in zip(("query", "key", "value"), x.qkv, wide.qkv, strict=True):
            if which not in (name, "all"):
                inputs.append(t)
            elif layout == "transposed":
                inputs.append(t.transpose(-1, -2).contiguous().transpose(-1, -2))
            else:
                inputs.append(w[..., ::2])
        check(*inputs, x.grad_output, x.grad_logsumexp)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_f14_output_follows_the_layout_of_the_query(dtype):
    x = make(Shape(2, 2, 2, 49, 49, 32, 32), dtype)
    assert ops.attention(*x.qkv).is_contiguous()
    inputs = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in x.qkv]
    out = ops.attention(*inputs)
    assert out.stride() == inputs[0].stride()
    assert out.transpose(1, 2).view(2, 49, 64).data_ptr() == out.data_ptr()
    grads = torch.autograd.grad(
        ops.attention(*(t.requires_grad_() for t in inputs)), inputs, x.grad_output
    )
    assert all(g.stride() == t.stride() for g, t in zip(grads, inputs, strict=True))
    fake = ops.attention(*(torch.empty_strided(t.shape, t.stride(), device="meta") for t in inputs))
    assert fake.stride() == out.stride()


@pytest.mark.own_mode
@pytest.mark.parametrize("which", ["query", "key", "value", "grad_output", "mask"])
def test_f16_element_offsets_beyond_two_to_the_31_equal_contiguous_clones(isa, which):
    x = make(Shape(3, 2, 2, 4, 4, 16, 16), torch.bfloat16)
    mask = torch.randn(3, 2, 4, 4).bfloat16()
    want = check(*x, attn_mask=mask)
    operands = {"query": x.query, "key": x.key, "value": x.value, "grad_output": x.grad_output}
    if which == "mask":
        mask = far_apart(mask)
    else:
        operands[which] = far_apart(operands[which])
    # The gradient of a tensor is dense, whatever the tensor's own strides are.
    inputs = [
        t.detach().requires_grad_() for t in (operands["query"], operands["key"], operands["value"])
    ]
    out, logsumexp = ops.attention_with_lse(*inputs, attn_mask=mask)
    grads = torch.autograd.grad(
        (out, logsumexp), inputs, (operands["grad_output"], x.grad_logsumexp)
    )
    for a, b in zip((out, logsumexp, *grads), want, strict=True):
        assert torch.equal(a, b)
