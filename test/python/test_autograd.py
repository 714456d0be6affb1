"""The operator inside torch's autograd: finite differences, graph life, hooks, checkpoints."""

import itertools
import math
import threading

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

from cases import Shape, make, run_fused

ops = torch.ops.fused_attention
SMALL = Shape(2, 4, 2, 3, 5, 3, 2)
OPTIONS = (
    {},
    {"is_causal": True, "diagonal_offset": 1},
    {"is_causal": True, "diagonal_offset": -1},
    {"window_size": (1, 2)},
    {"scale": -0.3},
)


def leaves(shape=SMALL, dtype=torch.float64, need=(True, True, True)):
    return [t.requires_grad_(n) for t, n in zip(make(shape, dtype).qkv, need, strict=True)]


def masks():
    keep = (torch.arange(30) % 3 > 0).view(2, 1, 3, 5)
    keep[0, 0, 1] = False
    bias = torch.arange(60.0, dtype=torch.float64).view(4, 3, 5).cos()
    bias[1, 2, 3], bias[0, 0] = -math.inf, -math.inf
    return keep, bias


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_output_gradient_passes_gradcheck(isa, options):
    assert gradcheck(lambda *a: ops.attention(*a, **options), leaves(), check_batched_grad=True)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_output_and_logsumexp_gradients_pass_gradcheck(options):
    # A row without keys has a logsumexp of -inf, which has no finite difference.
    return_value = slice(1, None) if options.get("diagonal_offset", 0) < 0 else slice(None)

    def call(*a):
        output, logsumexp = ops.attention_with_lse(*a, **options)
        return output, logsumexp[:, :, return_value]

    assert gradcheck(call, leaves(), check_batched_grad=True)


@pytest.mark.parametrize("mask", masks(), ids=["bool", "float"])
def test_masked_gradient_passes_gradcheck_and_gradgradcheck(mask):
    assert gradcheck(lambda *a: ops.attention(*a, attn_mask=mask), leaves())
    assert gradgradcheck(lambda *a: ops.attention(*a, attn_mask=mask), leaves())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_second_derivative_passes_gradgradcheck(options):
    assert gradgradcheck(lambda *a: ops.attention(*a, **options), leaves(), check_batched_grad=True)


def test_second_derivative_through_the_logsumexp_passes_gradgradcheck():
    assert gradgradcheck(lambda *a: ops.attention_with_lse(*a, is_causal=True), leaves())
    assert gradgradcheck(
        lambda *a: ops.attention_with_lse(*a)[1], [*leaves()[:2], make(SMALL, torch.float64).value]
    )


def test_forward_mode_passes_gradcheck():
    assert gradcheck(
        lambda *a: ops.attention_with_lse(*a, is_causal=True),
        leaves(),
        check_forward_ad=True,
        check_backward_ad=False,
        check_batched_forward_grad=False,
    )


def test_backward_operator_is_differentiable_itself():
    x = make(SMALL, torch.float64)
    _out, _logsumexp, _rng = ops.attention_forward(*x.qkv, is_causal=True)

    def call(grad, *qkv):
        out, logsumexp, rng = ops.attention_forward(*qkv, is_causal=True)
        need = [True] * 3 + [False] * 3
        return ops.attention_backward(grad, None, *qkv, out, logsumexp, rng, None, 0.0, True, need)[
            :3
        ]

    inputs = [t.clone().requires_grad_() for t in (x.grad_output, *x.qkv)]
    assert gradcheck(call, inputs)


@pytest.mark.parametrize(
    "need", [n for n in itertools.product([True, False], repeat=3) if any(n)], ids=str
)
def test_only_inputs_that_need_a_gradient_get_one(need):
    x = make(Shape(2, 4, 2, 33, 35, 8, 8))
    want = run_fused(*x.qkv, x.grad_output)[2:]
    inputs = [t.clone().requires_grad_(n) for t, n in zip(x.qkv, need, strict=True)]
    ops.attention(*inputs).backward(x.grad_output)
    for t, wanted, grad in zip(inputs, need, want, strict=True):
        assert (t.grad is not None) == wanted
        if wanted:
            torch.testing.assert_close(t.grad, grad, atol=1e-6, rtol=1e-6)


def test_output_without_needed_gradients_has_no_graph():
    x = make(SMALL)
    assert not ops.attention(*x.qkv).requires_grad
    with torch.no_grad():
        assert not ops.attention(*leaves()).requires_grad
    with torch.inference_mode():
        out = ops.attention(*leaves())
        assert out.is_inference()
    with torch.inference_mode():
        a = torch.randn(1, 1, 2, 3)
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        ops.attention(torch.randn(1, 1, 2, 3, requires_grad=True), a, a)


def test_freed_graph_raises_the_usual_error():
    out = ops.attention(*leaves())
    out.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.sum().backward()


def test_retained_graph_gives_the_same_gradients_again():
    inputs = leaves()
    out = ops.attention(*inputs, is_causal=True)
    first = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    second = torch.autograd.grad(out.sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("changed", ["query", "key", "value", "output"])
def test_in_place_change_of_a_saved_tensor_raises_the_version_error(changed):
    inputs = [t.clone() for t in leaves()]
    out = ops.attention(*inputs)
    tensors = dict(zip(("query", "key", "value", "output"), (*inputs, out), strict=True))
    loss = out.sum()
    with torch.no_grad():
        tensors[changed].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_in_place_change_of_a_saved_mask_raises_the_version_error():
    mask = torch.zeros(3, 5)
    out = ops.attention(*leaves(), attn_mask=mask)
    mask[0, 0] = 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_gives_the_same_gradients(use_reentrant):
    x = make(Shape(1, 2, 2, 33, 33, 8, 8))
    want = run_fused(*x.qkv, x.grad_output, is_causal=True)[2:]
    inputs = [t.clone().requires_grad_() for t in x.qkv]
    out = checkpoint(
        lambda *a: ops.attention(*a, is_causal=True), *inputs, use_reentrant=use_reentrant
    )
    got = torch.autograd.grad(out, inputs, x.grad_output) if not use_reentrant else None
    if use_reentrant:
        out.backward(x.grad_output)
        got = [t.grad for t in inputs]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_anomaly_mode_names_the_node_of_a_nan_gradient():
    inputs = leaves()
    with torch.autograd.set_detect_anomaly(True):
        out = ops.attention(*inputs)
        with (
            pytest.warns(UserWarning, match="Error detected in .*Attention"),
            pytest.raises(RuntimeError, match="returned nan values"),
        ):
            out.backward(torch.full_like(out, math.nan))


def test_saved_tensor_hooks_see_what_is_saved_and_no_more():
    x = make(Shape(1, 2, 1, 64, 64, 16, 16))
    packed = []

    def pack(t):
        packed.append(t.detach())
        return t.clone()

    inputs = [t.clone().requires_grad_() for t in x.qkv]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = ops.attention(*inputs)
    got = torch.autograd.grad(out, inputs, x.grad_output)
    assert all(
        torch.equal(a, b) for a, b in zip(got, run_fused(*x.qkv, x.grad_output)[2:], strict=True)
    )
    # q, k, v, out and the LSE; anything else at most linear in S.
    inherent = sum(t.numel() for t in (*x.qkv, out)) + 2 * 64
    assert sum(t.numel() for t in packed) <= inherent + 64


def test_save_on_cpu_and_node_hooks_work():
    inputs = leaves()
    with torch.autograd.graph.save_on_cpu():
        out = ops.attention(*inputs)
    seen = []
    out.grad_fn.register_hook(lambda grads_in, grads_out: seen.append(len(grads_out)))
    out.sum().backward()
    assert seen
    assert inputs[0].grad is not None


def test_two_threads_run_forward_and_backward_independently():
    x = make(Shape(1, 4, 2, 65, 65, 16, 16))
    want = run_fused(*x)
    failures = []

    def work():
        for _ in range(5):
            if not all(torch.equal(a, b) for a, b in zip(run_fused(*x), want, strict=True)):
                failures.append(threading.get_ident())

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_gradient_of_a_float_mask_is_refused_clearly():
    mask = torch.zeros(3, 5, requires_grad=True)
    x = make(SMALL)
    with pytest.raises(RuntimeError, match=r"fused_attention::attention.*attn_mask"):
        ops.attention(*x.qkv, attn_mask=mask).sum().backward()


def test_composite_records_the_node_of_attention_forward():
    inputs = leaves()
    a, b = ops.attention(*inputs).grad_fn, ops.attention_forward(*inputs)[0].grad_fn
    assert a.name() == b.name()
    assert "Attention" in a.name()


def test_long_chain_of_nodes_is_freed_without_overflow():
    x = torch.randn(1, 1, 1, 2, requires_grad=True)
    y = x
    for _ in range(20000):
        y = ops.attention(y, y, y)
    del y


def test_functional_jacobian_and_hessian_are_right():
    x = make(Shape(1, 1, 1, 2, 3, 2, 2), torch.float64)
    from reference import attention as formula

    def mine(q):
        return ops.attention(q, x.key, x.value).square().sum()

    def theirs(q):
        return formula(q, x.key, x.value)[0].square().sum()

    for functional in (torch.autograd.functional.jacobian, torch.autograd.functional.hessian):
        torch.testing.assert_close(functional(mine, x.query), functional(theirs, x.query))
