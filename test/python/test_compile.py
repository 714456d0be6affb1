"""torch.compile, export and AOTInductor: whole graphs, dynamic shapes, real strides."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.export import Dim, export

from cases import Shape, make, run_fused

ops = torch.ops.fused_attention
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def block(query, key, value, mask):
    """The operator between operations that the compiler is free to fuse and to re-lay."""
    out, logsumexp = ops.attention_with_lse(
        query * 1.5, key.transpose(1, 2), value, mask, is_causal=True, diagonal_offset=3
    )
    return out.transpose(1, 2).flatten(2).relu(), logsumexp.sum(-1)


def block_inputs(batch, seq_q, seq_k):
    x = make(Shape(batch, 4, 2, seq_q, seq_k, 16, 16))
    key = x.key.transpose(1, 2).contiguous()
    mask = torch.rand(batch, 1, seq_q, seq_k) < 0.8
    return [*(t.clone().requires_grad_() for t in (x.query, key, x.value)), mask]


def outcome(call, inputs):
    results = call(*inputs)
    loss = sum(r.square().sum() for r in results if r.isfinite().all())
    return results, torch.autograd.grad(loss, inputs[:3])


def assert_same(compiled, eager, inputs):
    torch.testing.assert_close(
        outcome(compiled, inputs), outcome(eager, inputs), atol=1e-4, rtol=1e-4
    )


def test_compiled_forward_and_backward_equal_eager():
    compiled = torch.compile(block, fullgraph=True)
    assert_same(compiled, block, block_inputs(2, 33, 40))


def test_dynamic_shapes_reuse_one_graph_forward_and_backward():
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=counter)
    # No two sizes of the first call are equal: torch would take them for one.
    for sizes in ((5, 33, 40), (3, 34, 41), (6, 50, 64), (7, 128, 31)):
        assert_same(compiled, block, block_inputs(*sizes))
    assert counter.frame_count == 1


@pytest.mark.parametrize("offset", [0, 3, -2])
def test_symbolic_diagonal_offset_is_no_reason_to_recompile(offset):
    counter = CompileCounterWithBackend("aot_eager")

    def decode(query, key, value):
        return ops.attention(
            query, key, value, is_causal=True, diagonal_offset=key.size(2) - query.size(2) + offset
        )

    compiled = torch.compile(decode, fullgraph=True, dynamic=True, backend=counter)
    for seq_q, seq_k in ((5, 9), (7, 20), (4, 33)):
        x = make(Shape(2, 4, 2, seq_q, seq_k, 8, 8))
        torch.testing.assert_close(compiled(*x.qkv), decode(*x.qkv))
    assert counter.frame_count == 1


def test_compiled_training_step_of_a_module_equals_eager():
    import fused_attention

    torch.manual_seed(1)
    module = fused_attention.nn.Attention(32, 4, 2, causal=True, rope=True)
    x = torch.randn(2, 20, 32)
    want = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(x).square().sum(), list(module.parameters()))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_compiled_transforms_equal_eager():
    x = make(Shape(2, 4, 2, 9, 11, 8, 8))

    def gradient(*qkv):
        return torch.func.grad(lambda *a: ops.attention(*a).square().sum(), (0, 1, 2))(*qkv)

    compiled = torch.compile(gradient, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*x.qkv), gradient(*x.qkv))
    stacked = [torch.stack([t, -t]) for t in x.qkv]
    batched = torch.compile(torch.vmap(ops.attention), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(batched(*stacked), torch.vmap(ops.attention)(*stacked))


def test_compiled_autograd_of_an_eager_forward_equals_eager():
    x = make(Shape(2, 4, 2, 33, 40, 8, 8))
    want = run_fused(*x)
    inputs = [t.clone().requires_grad_() for t in x.qkv]
    out, logsumexp = ops.attention_with_lse(*inputs)
    with torch._dynamo.compiled_autograd._enable(
        torch.compile(backend="aot_eager", fullgraph=True)
    ):
        torch.autograd.backward((out, logsumexp), (x.grad_output, x.grad_logsumexp))
    for t, grad in zip(inputs, want[2:], strict=True):
        torch.testing.assert_close(t.grad, grad)


def test_unbacked_sizes_compile():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(query, key, value, length):
        n = length.item()
        torch._check(n >= 1)
        torch._check(n <= key.size(2))
        return ops.attention(query, key[:, :, :n], value[:, :, :n])

    x = make(Shape(1, 4, 2, 3, 40, 8, 8))
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for n in (1, 17, 40):
            want = ops.attention(x.query, x.key[:, :, :n], x.value[:, :, :n])
            torch.testing.assert_close(call(*x.qkv, torch.tensor(n)), want)


class Block(torch.nn.Module):
    def forward(self, query, key, value):
        return ops.attention(query, key, value, is_causal=True, scale=0.3).transpose(1, 2)


DYNAMIC = {
    "query": {0: Dim("b"), 2: Dim("sq", min=1, max=4096)},
    "key": {0: Dim("b"), 2: Dim("sk", min=1, max=4096)},
    "value": {0: Dim("b"), 2: Dim("sk", min=1, max=4096)},
}


def exported():
    return export(Block(), make(Shape(2, 4, 2, 9, 11, 8, 8)).qkv, dynamic_shapes=DYNAMIC)


def test_exported_program_keeps_the_operator_and_survives_a_file(tmp_path):
    program = exported()
    assert "torch.ops.fused_attention.attention.default" in program.graph_module.code
    lowered = program.run_decompositions()
    assert "torch.ops.fused_attention.attention_forward.default" in lowered.graph_module.code
    torch.export.save(program, tmp_path / "block.pt2")
    loaded = torch.export.load(tmp_path / "block.pt2").module()
    for sizes in ((3, 4, 2, 1, 30, 8, 8), (1, 4, 2, 40, 7, 8, 8)):
        x = make(Shape(*sizes))
        torch.testing.assert_close(loaded(*x.qkv), Block()(*x.qkv))


def test_aot_inductor_package_runs_unseen_shapes(tmp_path):
    path = torch._inductor.aoti_compile_and_package(
        exported(), package_path=str(tmp_path / "block.pt2")
    )
    run = torch._inductor.aoti_load_package(path)
    for sizes in ((2, 4, 2, 9, 11, 8, 8), (3, 4, 2, 1, 30, 8, 8), (1, 4, 2, 40, 7, 8, 8)):
        x = make(Shape(*sizes))
        torch.testing.assert_close(run(*x.qkv), Block()(*x.qkv))
