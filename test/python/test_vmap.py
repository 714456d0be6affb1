"""The batching rules: in_dims, nesting, masks, options; no loop, no warning."""

import warnings

import pytest
import torch
from torch.func import vmap

from cases import Shape, make

ops = torch.ops.fused_attention
SHAPE = Shape(2, 4, 2, 5, 7, 8, 6)


@pytest.fixture(autouse=True)
def no_warning_about_a_slow_fallback():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def stack(t, dim, copies=3):
    return t if dim is None else torch.stack([t * (1 + i) for i in range(copies)], dim)


def one_by_one(call, inputs, in_dims, copies=3):
    results = [
        call(*(t if d is None else t.select(d, i) for t, d in zip(inputs, in_dims, strict=True)))
        for i in range(copies)
    ]
    return torch.stack(results)


IN_DIMS = [
    (0, 0, 0),
    (1, 2, 3),
    (4, 4, 4),
    (-1, -2, -3),
    (0, None, None),
    (None, 0, None),
    (None, None, 0),
    (None, 1, 0),
]


@pytest.mark.parametrize("in_dims", IN_DIMS, ids=str)
def test_vmap_equals_one_by_one(in_dims):
    x = make(SHAPE, torch.float64)
    inputs = [stack(t, d) for t, d in zip(x.qkv, in_dims, strict=True)]

    def call(*a):
        return ops.attention(*a, is_causal=True, diagonal_offset=2, scale=0.5, window_size=(3, 1))

    torch.testing.assert_close(vmap(call, in_dims)(*inputs), one_by_one(call, inputs, in_dims))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
@pytest.mark.parametrize(
    "shape", [(7,), (5, 7), (4, 5, 7), (4, 1, 7), (2, 4, 5, 7), (2, 1, 1, 7)], ids=str
)
@pytest.mark.parametrize("mask_dim", [0, 1, None])
def test_vmap_over_a_mask_equals_one_by_one(mask_dim, shape, dtype):
    x = make(SHAPE, torch.float64)
    in_dims = (0, 0, 0, mask_dim)
    size = list(shape)
    if mask_dim is not None:
        size.insert(mask_dim, 3)
    mask = torch.rand(size) < 0.6 if dtype == torch.bool else torch.randn(size, dtype=dtype)
    inputs = [*(stack(t, 0) for t in x.qkv), mask]
    torch.testing.assert_close(
        vmap(ops.attention, in_dims)(*inputs), one_by_one(ops.attention, inputs, in_dims)
    )


def test_vmap_over_the_mask_alone_equals_one_by_one():
    x = make(SHAPE, torch.float64)
    inputs = [*x.qkv, torch.rand(3, 4, 5, 7) < 0.6]
    in_dims = (None, None, None, 0)
    torch.testing.assert_close(
        vmap(ops.attention, in_dims)(*inputs), one_by_one(ops.attention, inputs, in_dims)
    )


def test_nested_vmap_equals_two_loops():
    x = make(SHAPE, torch.float64)
    inputs = [torch.stack([stack(t, 0, 2), -stack(t, 0, 2)]) for t in x.qkv]
    want = torch.stack(
        [one_by_one(ops.attention, [t[i] for t in inputs], (0, 0, 0), 2) for i in range(2)]
    )
    torch.testing.assert_close(vmap(vmap(ops.attention))(*inputs), want)
    crossed = vmap(vmap(ops.attention, (0, None, None)), (None, 0, 0))
    got = crossed(inputs[0][0], inputs[1][0], inputs[2][0])
    want = torch.stack(
        [
            torch.stack(
                [ops.attention(inputs[0][0][j], inputs[1][0][i], inputs[2][0][i]) for j in range(2)]
            )
            for i in range(2)
        ]
    )
    torch.testing.assert_close(got, want)


def test_vmap_gives_every_output_of_the_forward_operator():
    x = make(SHAPE, torch.float64)
    inputs = [stack(t, 0) for t in x.qkv]
    out, logsumexp = vmap(ops.attention_with_lse)(*inputs)
    assert out.shape == (3, 2, 4, 5, 6)
    assert logsumexp.shape == (3, 2, 4, 5)
    for i in range(3):
        want = ops.attention_with_lse(*(t[i] for t in inputs))
        torch.testing.assert_close((out[i], logsumexp[i]), want)


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 0, 0)], ids=str)
def test_backward_through_vmap_equals_one_by_one(in_dims):
    x = make(SHAPE, torch.float64)

    def gradients(call):
        inputs = [stack(t, d).clone().requires_grad_() for t, d in zip(x.qkv, in_dims, strict=True)]
        out = call(*inputs)
        return torch.autograd.grad(out.sin().sum(), inputs)

    got = gradients(vmap(ops.attention, in_dims))
    want = gradients(lambda *a: one_by_one(ops.attention, a, in_dims))
    torch.testing.assert_close(got, want)


def test_vmap_over_gradients_equals_one_by_one():
    x = make(SHAPE, torch.float64)
    inputs = [t.clone().requires_grad_() for t in x.qkv]
    out, logsumexp = ops.attention_with_lse(*inputs)
    seeds = torch.randn(3, *out.shape, dtype=torch.float64)
    lse_seeds = torch.randn(3, *logsumexp.shape, dtype=torch.float64)

    def pull(g, gl):
        return torch.autograd.grad((out, logsumexp), inputs, (g, gl), retain_graph=True)

    got = vmap(pull)(seeds, lse_seeds)
    for i in range(3):
        torch.testing.assert_close(tuple(g[i] for g in got), pull(seeds[i], lse_seeds[i]))


def test_vmap_over_three_dimensional_inputs():
    q, k, v = torch.randn(3, 4, 5, 8), torch.randn(3, 2, 7, 8), torch.randn(3, 2, 7, 8)
    got = vmap(ops.attention)(q, k, v)
    torch.testing.assert_close(
        got, torch.stack([ops.attention(q[i], k[i], v[i]) for i in range(3)])
    )
