"""torch.func transforms, and which operators they run."""

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from cases import Shape, make
from reference import visible_keys

ops = torch.ops.fused_attention
SMALL = Shape(1, 2, 1, 3, 4, 3, 2)
OPTIONS = {"is_causal": True, "diagonal_offset": 1, "scale": 0.4}


def loss(attention):
    return lambda *qkv: attention(*qkv).square().sum()


def fused(*qkv):
    return ops.attention(*qkv, **OPTIONS)


def formula(query, key, value):
    """Written anew without the reference's checks of values, which transforms cannot trace."""
    key, value = (t.repeat_interleave(2, -3) for t in (key, value))
    scores = OPTIONS["scale"] * query @ key.transpose(-1, -2)
    scores = scores.masked_fill(~visible_keys(3, 4, True, 1), float("-inf"))
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def expected(*qkv):
    return formula(*qkv)[0]


def same(mine, theirs, *inputs):
    torch.testing.assert_close(mine(*inputs), theirs(*inputs), atol=1e-10, rtol=1e-8)


@pytest.fixture
def x():
    return make(SMALL, torch.float64)


@pytest.mark.parametrize("argument", [0, 1, 2, (0, 1, 2)])
def test_grad_equals_the_formula(x, argument):
    same(grad(loss(fused), argument), grad(loss(expected), argument), *x.qkv)


def test_vjp_equals_the_formula(x):
    for a, b in zip(
        vjp(fused, *x.qkv)[1](x.grad_output), vjp(expected, *x.qkv)[1](x.grad_output), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_grad_of_grad_equals_the_formula(x):
    def twice(attention):
        return grad(lambda *qkv: grad(loss(attention))(*qkv).sin().sum(), (0, 1, 2))

    same(twice(fused), twice(expected), *x.qkv)


def test_jvp_equals_the_formula(x):
    tangents = tuple(torch.randn_like(t) for t in x.qkv)
    torch.testing.assert_close(jvp(fused, x.qkv, tangents), jvp(expected, x.qkv, tangents))


@pytest.mark.parametrize(
    ("offset", "window"),
    [
        (2**62, (2**61, -1)),  # the window ends far beyond the keys: nothing is seen
        (2**62, (2**62 + 1, -1)),  # the two nearly cancel
        (-(2**63), (-1, 2**63 - 1)),
        (2**63 - 1, (2**63 - 1, 0)),
    ],
)
def test_jvp_at_extreme_offsets_sees_what_the_forward_pass_sees(x, offset, window):
    def call(q):
        return ops.attention(q, *x.qkv[1:], diagonal_offset=offset, window_size=window)

    def near(q):
        # Row i sees i + low <= j <= i + high; anything past the lengths means the same.
        low = max(-9, min(9, offset - window[0])) if window[0] >= 0 else -9
        high = max(-9, min(9, offset + window[1])) if window[1] >= 0 else 9
        return ops.attention(q, *x.qkv[1:], diagonal_offset=high, window_size=(high - low, 0))

    q = x.qkv[0]
    tangent = torch.randn_like(q)
    if (offset, window) == (2**62, (2**61, -1)):
        out, out_tangent = jvp(call, (q,), (tangent,))
        assert not out.any()
        assert not out_tangent.any()
    else:
        torch.testing.assert_close(jvp(call, (q,), (tangent,)), jvp(near, (q,), (tangent,)))


def test_jvp_of_the_logsumexp_equals_the_formula(x):
    tangents = tuple(torch.randn_like(t) for t in x.qkv)
    mine = jvp(lambda *a: ops.attention_with_lse(*a, **OPTIONS), x.qkv, tangents)
    theirs = jvp(lambda *a: formula(*a), x.qkv, tangents)
    torch.testing.assert_close(mine, theirs)


def test_jvp_with_a_tangent_on_one_input_only(x):
    tangent = torch.randn_like(x.key)

    def along_key(attention):
        return jvp(lambda k: attention(x.query, k, x.value), (x.key,), (tangent,))

    torch.testing.assert_close(along_key(fused), along_key(expected))


@pytest.mark.parametrize("transform", [jacrev, jacfwd, hessian], ids=lambda t: t.__name__)
def test_jacobian_and_hessian_equal_the_formula(x, transform):
    for argument in range(3):
        if transform is hessian:
            same(transform(loss(fused), argument), transform(loss(expected), argument), *x.qkv)
        else:
            same(transform(fused, argument), transform(expected, argument), *x.qkv)


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 0, 0), (2, 1, 3)], ids=str)
def test_vmap_of_grad_equals_the_formula(x, in_dims):
    inputs = [
        t if dim is None else torch.stack([t, 2 * t, -t], dim)
        for t, dim in zip(x.qkv, in_dims, strict=True)
    ]
    mine = vmap(grad(loss(fused), (0, 1, 2)), in_dims)
    theirs = vmap(grad(loss(expected), (0, 1, 2)), in_dims)
    same(mine, theirs, *inputs)


def test_grad_of_vmap_equals_the_formula(x):
    inputs = [torch.stack([t, 2 * t]) for t in x.qkv]
    mine = grad(lambda *a: vmap(fused)(*a).square().sum(), (0, 1, 2))
    theirs = grad(lambda *a: vmap(expected)(*a).square().sum(), (0, 1, 2))
    same(mine, theirs, *inputs)


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("route", ["torch.func.grad", "torch.autograd.grad", "create_graph"])
def test_first_derivative_runs_the_fused_backward_and_no_matmul(x, route):
    inputs = [t.clone().requires_grad_(route != "torch.func.grad") for t in x.qkv]
    with Recorder() as recorder:
        if route == "torch.func.grad":
            grad(loss(fused), (0, 1, 2))(*inputs)
        else:
            value = loss(fused)(*inputs)
            torch.autograd.grad(value, inputs, create_graph=route == "create_graph")
    ran = [n for n in recorder.names if "attention" in n]
    assert "fused_attention.attention_forward.default" in ran
    assert "fused_attention.attention_backward.default" in ran
    formula_operators = {"aten.mm", "aten.bmm", "aten.matmul", "aten._softmax", "aten.exp"}
    assert not formula_operators & {n.rpartition(".")[0] for n in recorder.names}


def test_functionalize_and_make_fx_keep_the_operator(x):
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(torch.func.functionalize(grad(loss(fused))))(*x.qkv)
    targets = [str(n.target) for n in graph.graph.nodes]
    assert "fused_attention.attention_backward.default" in targets
    torch.testing.assert_close(graph(*x.qkv), grad(loss(expected))(*x.qkv))
