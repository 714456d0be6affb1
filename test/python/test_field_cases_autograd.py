"""Field cases F21, F22, F24-F26: connection to autograd, memory over steps, precision, autocast."""

import gc

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import fused_attention
from cases import Shape, check, dtype_id, make, run_fused
from process_memory import resident

ops = torch.ops.fused_attention


class PassThrough(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


ROUTES = {
    "torch.ops": lambda *a: ops.attention(*a),
    "overload": lambda *a: ops.attention.default(*a),
    "with lse": lambda *a: ops.attention_with_lse(*a)[0],
    "forward operator": lambda *a: ops.attention_forward(*a)[0],
    "python": lambda *a: fused_attention.attention(*a),
    "by name": lambda *a: torch._C._jit_get_operation("fused_attention::attention")[0](*a),
}


@pytest.mark.parametrize("inside_mode", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_f21_every_route_is_connected_to_autograd(route, inside_mode):
    x = make(Shape(1, 2, 2, 5, 5, 8, 8))
    inputs = [t.clone().requires_grad_() for t in x.qkv]
    if inside_mode:
        with PassThrough():
            out = ROUTES[route](*inputs)
    else:
        out = ROUTES[route](*inputs)
    assert out.requires_grad
    grads = torch.autograd.grad(out, inputs, x.grad_output)
    want = check(*x.qkv, x.grad_output)
    assert all(torch.equal(a, b) for a, b in zip(grads, want[2:], strict=True))
    with torch.no_grad():
        assert not ROUTES[route](*inputs).requires_grad
    with torch.inference_mode():
        assert not ROUTES[route](*inputs).requires_grad


def steps_of(kind):
    x = make(Shape(1, 4, 4, 256, 256, 32, 32))
    inputs = [t.clone().requires_grad_() for t in x.qkv]

    def fail(grad):
        raise ArithmeticError("half-way")

    def step():
        if kind == "backward":
            torch.autograd.grad(ops.attention(*inputs).sum(), inputs)
        elif kind == "dropped":
            ops.attention(*inputs)
        elif kind == "checkpoint":
            out = checkpoint(lambda *a: ops.attention(*a), *inputs, use_reentrant=False)
            torch.autograd.grad(out.sum(), inputs)
        else:
            scaled = [t * 2 for t in inputs]
            scaled[0].register_hook(fail)
            with pytest.raises(ArithmeticError):
                ops.attention(*scaled).sum().backward()

    return step


def live_tensors():
    gc.collect()
    return sum(isinstance(o, torch.Tensor) for o in gc.get_objects())


@pytest.mark.own_mode
@pytest.mark.parametrize("kind", ["backward", "dropped", "checkpoint", "failing backward"])
def test_f22_memory_and_live_tensors_stay_flat_over_steps(kind):
    step = steps_of(kind)
    for _ in range(40):
        step()
    tensors, before = live_tensors(), resident()
    gc.disable()  # a cycle must not hide behind the collector
    try:
        for _ in range(260):
            step()
        after = resident()
    finally:
        gc.enable()
    # One leaked output a step would be 33 MiB.
    assert after - before < 12 * 2**20, f"{(after - before) / 2**20:.1f} MiB"
    assert live_tensors() <= tensors + 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=dtype_id)
def test_f24_half_precision_scores_do_not_overflow(isa, dtype):
    shape = (1, 2, 20, 64)
    filled = torch.full(shape, 256.0, dtype=dtype)
    value, grad = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    result = check(filled, filled, value, grad)
    mean = value.float().mean(2, keepdim=True).expand(shape)
    torch.testing.assert_close(result.output.float(), mean, atol=4e-3, rtol=0)
    assert all(t.isfinite().all() for t in result)

    key = -filled
    key[:, :, 7] = 256.0
    result = check(filled, key, value, grad)
    assert torch.equal(result.output, value[:, :, 7:8].expand(shape))
    assert all(t.isfinite().all() for t in result)


def test_f25_autocast_takes_mixed_inputs_and_gives_each_its_own_gradient_dtype():
    x = make(Shape(1, 4, 4, 10, 10, 16, 16))
    inputs = [x.query, x.key, x.value.bfloat16()]
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    with torch.autocast("cpu", torch.bfloat16):
        out = ops.attention(*inputs)
        assert ops.attention(*x.qkv).dtype == torch.bfloat16
        assert fused_attention.attention(*x.qkv).dtype == torch.bfloat16
    assert out.dtype == torch.bfloat16
    grads = torch.autograd.grad(out.float().sum(), inputs)
    assert [g.dtype for g in grads] == [torch.float32, torch.float32, torch.bfloat16]
    want = run_fused(*(t.bfloat16() for t in x.qkv)).output
    assert torch.equal(out, want)


def test_f25_mixed_inputs_outside_autocast_are_an_error_that_names_all_three():
    x = make(Shape(1, 4, 4, 10, 10, 16, 16))
    pattern = "query.dtype: .*[Ff]loat.*key.dtype: .*[Hh]alf.*value.dtype: .*[Hh]alf"
    for device in ("cpu", "meta"):
        with pytest.raises(RuntimeError, match=pattern):
            ops.attention(x.query.to(device), x.key.half().to(device), x.value.half().to(device))


@pytest.mark.parametrize("visible", [1, 100, 500, 580, 590, 1000])
def test_f26_bfloat16_with_much_padding_agrees_with_the_sliced_call(isa, visible):
    x = make(Shape(1, 1, 1, 1, 1000, 64, 64), torch.bfloat16)
    mask = torch.arange(1000) < visible
    masked = check(*x.qkv, x.grad_output, attn_mask=mask)
    sliced = run_fused(x.query, x.key[:, :, :visible], x.value[:, :, :visible])
    # At most one unit in the last place of bfloat16 apart.
    torch.testing.assert_close(masked.output, sliced.output, atol=1e-5, rtol=2**-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=dtype_id)
def test_f26_many_small_weights_are_summed_without_loss(isa, dtype):
    x = make(Shape(1, 1, 1, 2, 8192, 64, 64), dtype)
    result = check(torch.zeros_like(x.query), x.key, x.value + 1, x.grad_output)
    torch.testing.assert_close(
        result.output.float(),
        (x.value + 1).float().mean(2, keepdim=True).expand(1, 1, 2, 64),
        atol=0,
        rtol=2**-7,
    )
