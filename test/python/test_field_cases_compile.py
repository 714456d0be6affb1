"""Field cases F33, F34 and F36: fake metadata, dynamic lengths, splitting over threads."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export
from torch.library import opcheck

from cases import DTYPES, Shape, check, dtype_id, make, run_fused

ops = torch.ops.fused_attention


def queries(seq):
    yield "contiguous", torch.randn(2, 3, seq, 8)
    yield "transposed", torch.randn(2, seq, 3, 8).transpose(1, 2)
    yield "packed", torch.randn(2, seq, 3, 3, 8).unbind(2)[1].transpose(1, 2)
    yield "expanded", torch.randn(1, 1, seq, 8).expand(2, 3, seq, 8)


CASES = [(seq, name) for seq in (7, 196, 257) for name, _ in queries(1)]


def metadata(t):
    return t.shape, t.stride(), t.dtype, t.device


def all_outputs(query, key, value):
    inputs = [t.detach().requires_grad_() for t in (query, key, value)]
    out, logsumexp = ops.attention_with_lse(*inputs, is_causal=True)
    grads = torch.autograd.grad((out.sum() + logsumexp.sum()), inputs)
    return out, logsumexp, *grads


@pytest.mark.parametrize(("seq", "layout"), CASES, ids=str)
def test_f33_fake_and_real_metadata_agree(seq, layout):
    query = dict(queries(seq))[layout]
    real = all_outputs(query, query, query)
    with FakeTensorMode() as mode:
        fake_query = mode.from_tensor(query)
        fake = all_outputs(fake_query, fake_query, fake_query)
    assert [metadata(t) for t in real] == [metadata(t) for t in fake]
    opcheck(ops.attention_forward.default, (query, query, query), {"is_causal": True})


def test_f33_many_batches_of_one_row():
    query = torch.randn(65536, 1, 1, 4)
    real = all_outputs(query, query, query)
    with FakeTensorMode() as mode:
        fake = all_outputs(*[mode.from_tensor(query)] * 3)
    assert [metadata(t) for t in real] == [metadata(t) for t in fake]
    assert torch.equal(real[0], query)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["transposed", "packed"])
def test_f33_compiled_forward_and_backward_equal_eager(layout):
    torch._dynamo.reset()
    query = dict(queries(257))[layout]
    key, value = torch.randn(2, 3, 257, 8), torch.randn(2, 3, 257, 8)
    call = torch.compile(lambda *a: ops.attention(*a, is_causal=True), fullgraph=True)
    grad = torch.randn(2, 3, 257, 8)
    inputs = [t.detach().requires_grad_() for t in (query, key, value)]
    out = call(*inputs)
    want = run_fused(query, key, value, grad, is_causal=True)
    assert out.stride() == want.output.stride()
    got = (out, *torch.autograd.grad(out, inputs, grad))
    torch.testing.assert_close(got, (want.output, *want[2:]))


LENGTHS = (17, 18, 19, 31, 32, 33, 64)


def test_f34_growing_lengths_compile_at_most_two_graphs():
    for decode in (False, True):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        call = torch.compile(
            lambda *a: ops.attention(
                *a, is_causal=True, diagonal_offset=a[1].size(2) - a[0].size(2)
            ),
            dynamic=True,
            fullgraph=True,
            backend=counter,
        )
        for length in LENGTHS:
            x = make(Shape(1, 4, 2, 1 if decode else length, length, 8, 8))
            inputs = [t.clone().requires_grad_() for t in x.qkv]
            out = call(*inputs)
            grads = torch.autograd.grad(out, inputs, x.grad_output)
            want = run_fused(*x[:4], is_causal=True, diagonal_offset=length - x.query.size(2))
            torch.testing.assert_close((out, *grads), (want.output, *want[2:]))
        assert counter.frame_count <= 2


def test_f34_exported_program_runs_at_unseen_lengths():
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return ops.attention(q, k, v, is_causal=True)

    length = {2: Dim("s", min=2, max=1024)}
    x = make(Shape(1, 4, 2, 24, 24, 8, 8))
    program = export(Layer(), x.qkv, dynamic_shapes=[length, length, length])
    for seq in (2, 17, 31, 33, 100, 1000):
        x = make(Shape(1, 4, 2, seq, seq, 8, 8))
        torch.testing.assert_close(program.module()(*x.qkv), ops.attention(*x.qkv, is_causal=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("seq", [1, 31, 32, 33, 64, 200])
def test_f36_results_are_right_and_equal_for_any_split_over_threads(isa, seq, dtype):
    x = make(Shape(1, 1, 1, seq, seq, 64, 64), dtype)
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3, 4, 16):
            torch.set_num_threads(count)
            results.append(check(*x))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, results[0], strict=True))
