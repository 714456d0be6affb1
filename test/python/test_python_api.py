"""fused_attention.attention: torch's names, CausalBias, return_lse, leading dimensions."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import fused_attention
from cases import Shape, check, make

attention = fused_attention.attention
SHAPE = Shape(2, 4, 2, 9, 13, 8, 6)


def test_names_and_order_are_those_of_torch():
    theirs = torch.ops.aten.scaled_dot_product_attention.default._schema.arguments
    mine = list(inspect.signature(attention).parameters)
    assert mine[: len(theirs)] == [a.name for a in theirs]


@pytest.mark.parametrize("is_causal", [False, True])
def test_drop_in_for_torch_sdpa(is_causal):
    x = make(Shape(2, 4, 4, 9, 9, 8, 8))
    want = F.scaled_dot_product_attention(*x.qkv, None, 0.0, is_causal)
    torch.testing.assert_close(attention(*x.qkv, None, 0.0, is_causal), want, atol=1e-5, rtol=1e-5)
    mask = torch.rand(9, 9) < 0.8
    mask[:, 0] = True
    want = F.scaled_dot_product_attention(*x.qkv, attn_mask=mask, scale=0.2, enable_gqa=True)
    got = attention(*x.qkv, attn_mask=mask, scale=0.2, enable_gqa=True)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_return_lse_gives_both_and_they_are_differentiable():
    x = make(SHAPE)
    inputs = [t.clone().requires_grad_() for t in x.qkv]
    output, logsumexp = attention(*inputs, is_causal=True, return_lse=True)
    grads = torch.autograd.grad((output, logsumexp), inputs, (x.grad_output, x.grad_logsumexp))
    want = check(*x, is_causal=True)
    assert torch.equal(output, want.output)
    assert torch.equal(logsumexp, want.logsumexp)
    assert all(torch.equal(a, b) for a, b in zip(grads, want[2:], strict=True))
    assert torch.equal(attention(*x.qkv, is_causal=True), want.output)


@pytest.mark.parametrize("variant", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize("lengths", [(9, 13), (13, 9), (1, 13), (9, 9)], ids=str)
def test_causal_bias_means_what_it_means_to_torch(variant, lengths):
    x = make(Shape(2, 4, 2, *lengths, 8, 8))
    bias = variant(*lengths)
    offset = lengths[1] - lengths[0] if variant is causal_lower_right else 0
    want = check(*x.qkv, is_causal=True, diagonal_offset=offset).output
    assert torch.equal(attention(*x.qkv, bias), want)
    assert torch.equal(attention(*x.qkv, attn_mask=bias), want)


def test_causal_bias_beside_another_diagonal_or_for_other_lengths_is_refused():
    x = make(SHAPE)
    bias = causal_lower_right(9, 13)
    with pytest.raises(RuntimeError, match="is_causal"):
        attention(*x.qkv, bias, is_causal=True)
    with pytest.raises(RuntimeError, match="diagonal_offset"):
        attention(*x.qkv, bias, diagonal_offset=2)
    with pytest.raises(RuntimeError, match="CausalBias"):
        attention(*x.qkv, causal_lower_right(9, 12))


def test_window_reaches_the_operator():
    x = make(SHAPE)
    want = check(*x.qkv, window_size=(2, 1), diagonal_offset=3).output
    assert torch.equal(attention(*x.qkv, window_size=(2, 1), diagonal_offset=3), want)


@pytest.mark.parametrize("call", [attention, torch.ops.fused_attention.attention])
def test_explicit_false_for_enable_gqa_refuses_unequal_heads(call):
    x = make(SHAPE)
    assert call(*x.qkv).shape == (2, 4, 9, 6)
    assert call(*x.qkv, enable_gqa=True).shape == (2, 4, 9, 6)
    with pytest.raises(RuntimeError, match=r"expected .*heads.*enable_gqa.*4.*2"):
        call(*x.qkv, enable_gqa=False)
    equal = make(Shape(2, 4, 4, 9, 13, 8, 6))
    assert torch.equal(call(*equal.qkv, enable_gqa=False), call(*equal.qkv))


LEADING = [(), (3,), (2, 3, 4), (2, 2, 2, 4)]


@pytest.mark.parametrize("leading", LEADING, ids=str)
def test_other_numbers_of_leading_dimensions_are_folded_as_torch_does(leading):
    q, k, v = torch.randn(*leading, 5, 8), torch.randn(*leading, 7, 8), torch.randn(*leading, 7, 6)
    inputs = [t.requires_grad_() for t in (q, k, v)]
    out, logsumexp = attention(*inputs, scale=0.4, return_lse=True)
    want = F.scaled_dot_product_attention(*inputs, scale=0.4)
    assert out.shape == (*leading, 5, 6)
    assert logsumexp.shape == (*leading, 5)
    torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-5)
    seed = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, inputs, seed),
        torch.autograd.grad(want, inputs, seed),
        atol=1e-5,
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    "mask_shape", [(7,), (5, 7), (4, 5, 7), (3, 1, 5, 7), (2, 3, 1, 1, 7), (2, 1, 4, 5, 7)], ids=str
)
def test_masks_of_five_dimensional_inputs_align_from_the_right(mask_shape):
    q, k, v = torch.randn(2, 3, 4, 5, 8), torch.randn(2, 3, 4, 7, 8), torch.randn(2, 3, 4, 7, 8)
    mask = torch.rand(mask_shape) < 0.7
    mask[..., 0] = True
    want = F.scaled_dot_product_attention(q, k, v, mask)
    torch.testing.assert_close(attention(q, k, v, mask), want, atol=1e-5, rtol=1e-5)


def test_grouped_heads_in_three_and_five_dimensions():
    q, k = torch.randn(4, 5, 8), torch.randn(2, 7, 8)
    want = attention(q[None], k[None], k[None])[0]
    assert torch.equal(attention(q, k, k), want)
    q, k = torch.randn(2, 3, 4, 5, 8), torch.randn(2, 3, 2, 7, 8)
    want = attention(q.flatten(0, 1), k.flatten(0, 1), k.flatten(0, 1)).unflatten(0, (2, 3))
    assert torch.equal(attention(q, k, k), want)


def test_numbers_of_dimensions_that_differ_are_refused():
    with pytest.raises(RuntimeError, match=r"fused_attention::attention: expected .*dimensions"):
        attention(torch.ones(1, 2, 5, 8), torch.ones(2, 7, 8), torch.ones(2, 7, 8))
    with pytest.raises(RuntimeError, match="fused_attention::attention: expected query"):
        attention(torch.ones(8), torch.ones(8), torch.ones(8))


@pytest.mark.parametrize("name", ["key", "value", "attn_mask"])
def test_leading_dimensions_that_differ_are_refused(name):
    shapes = {"query": (3, 2, 4, 5, 8), "key": (3, 2, 2, 7, 8), "value": (3, 2, 2, 7, 8)}
    inputs = {n: torch.ones(shape) for n, shape in shapes.items()}
    inputs["attn_mask"] = torch.ones(3, 1, 1, 5, 7)
    attention(**inputs)
    inputs[name] = inputs[name][:2]
    with pytest.raises(
        RuntimeError,
        match=rf"expected {name} to have the leading dimensions.*{name} of shape \[2, .*\[3, 2, 4",
    ):
        attention(**inputs)


def test_package_names_its_version_and_cmake_folder():
    from pathlib import Path

    assert fused_attention.__version__.count(".") == 2
    found = Path(fused_attention.cmake_prefix_path).rglob("fused_attention-config.cmake")
    assert next(found, None) is not None


@pytest.mark.parametrize(
    "options",
    [
        {"scale": torch.tensor(0.5, requires_grad=True)},
        {"is_causal": None},
        {"is_causal": torch.tensor(True)},
        {"window_size": 5},
        {"window_size": (1.5, 0)},
        {"window_size": (torch.tensor(2), 0)},
        {"diagonal_offset": torch.tensor(2.7)},
        {"diagonal_offset": 1.0},
    ],
    ids=str,
)
def test_arguments_of_another_type_are_refused_instead_of_converted(options):
    q = torch.ones(1, 2, 3, 4)
    with pytest.raises(
        TypeError, match=f"fused_attention.attention: expected {next(iter(options))}"
    ):
        attention(q, q, q, **options)
