"""Field cases F15, F17-F19: empty sizes, head counts, head dims, wide heads."""

import pytest
import torch

from cases import Shape, check, dtype_id, make, run_fused
from process_memory import peak_above
from reference import Result, assert_close_to_reference

ops = torch.ops.fused_attention

EMPTY = {
    "no rows and no keys": Shape(2, 3, 3, 0, 0, 8, 8),
    "no queries": Shape(2, 3, 3, 0, 5, 8, 8),
    "no keys": Shape(2, 3, 3, 5, 0, 8, 8),
    "no batch": Shape(0, 3, 3, 5, 5, 8, 8),
    "no heads": Shape(2, 0, 0, 5, 5, 8, 8),
}


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window_size": (1, 1)}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=dtype_id)
@pytest.mark.parametrize("name", EMPTY)
def test_f15_empty_sizes_give_empty_or_zero_results(isa, nan_filled, name, dtype, options):
    shape = EMPTY[name]
    x = make(shape, dtype)
    result = run_fused(*x, **options)
    assert result.output.shape == (shape.batch, shape.heads_q, shape.seq_q, 8)
    assert (result.output == 0).all()
    assert (result.logsumexp == -torch.inf).all()
    for grad, t in zip(result[2:], x.qkv, strict=True):
        assert grad.shape == t.shape
        assert (grad == 0).all()
    with torch.no_grad():
        assert torch.equal(ops.attention(*x.qkv, **options), result.output)


def test_f15_head_dim_of_zero_and_unequal_head_dims_are_errors():
    zero = torch.empty(1, 1, 2, 0)
    with pytest.raises(RuntimeError, match="expected a head dim D of at least 1"):
        ops.attention(zero, zero, torch.empty(1, 1, 2, 4))
    with pytest.raises(RuntimeError, match="same head dim D"):
        ops.attention(torch.empty(1, 1, 2, 3), torch.empty(1, 1, 2, 4), torch.empty(1, 1, 2, 4))


@pytest.mark.parametrize("heads", [(3, 2), (33, 2), (2, 4), (5, 0)], ids=str)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_f17_query_heads_that_are_no_multiple_of_key_heads_name_both_counts(device, heads):
    q = torch.empty(1, heads[0], 3, 4, device=device)
    k = torch.empty(1, heads[1], 3, 4, device=device)
    pattern = f"multiple.*{heads[0]}.*{heads[1]}"
    for call in (ops.attention, ops.attention_forward):
        with pytest.raises(RuntimeError, match=pattern):
            call(q, k, k)
    lse, rng = (
        torch.empty(1, heads[0], 3, device=device),
        torch.empty(0, dtype=torch.long, device=device),
    )
    with pytest.raises(RuntimeError, match=pattern):
        ops.attention_backward(
            q, None, q, k, k, q, lse, rng, None, 0.0, False, [True] * 3 + [False] * 3
        )


@pytest.mark.parametrize(
    "shape",
    [Shape(1, 2, 2, 4, 4, 8, 16), Shape(1, 2, 2, 4, 4, 8, 4), Shape(1, 4, 2, 37, 37, 24, 40)],
    ids=str,
)
def test_f18_value_head_dim_may_differ_from_query_head_dim(isa, shape):
    result = check(*make(shape), is_causal=True)
    assert result.output.size(-1) == shape.dim_v
    assert result.grad_value.size(-1) == shape.dim_v


@pytest.mark.slow
def test_f18_compiled_backward_with_another_value_head_dim_equals_reference():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *a: ops.attention(*a, is_causal=True), fullgraph=True, dynamic=True
    )
    for shape in (Shape(1, 2, 2, 4, 4, 8, 16), Shape(1, 4, 2, 37, 37, 24, 40)):
        x = make(shape)
        inputs = [t.clone().requires_grad_() for t in x.qkv]
        out = compiled(*inputs)
        grads = torch.autograd.grad(out, inputs, x.grad_output)
        result = Result(out.detach(), None, *grads)
        assert_close_to_reference(result, *x.qkv, x.grad_output, is_causal=True)


@pytest.mark.slow
@pytest.mark.own_mode
@pytest.mark.parametrize(
    ("dim", "dim_v", "masked"), [(512, 512, False), (128, 128, True), (192, 128, False)], ids=str
)
def test_f19_wide_or_masked_grouped_heads_need_no_score_matrix(dim, dim_v, masked):
    seq, head = 2048, 5  # the scores would have 128 MiB
    x = make(Shape(1, 8, 1, seq, seq, dim, dim_v), torch.bfloat16)
    options = {}
    if masked:
        options["attn_mask"] = torch.rand(1, 1, seq, seq) < 0.9
    grad = torch.zeros_like(x.grad_output)
    grad[:, head] = x.grad_output[:, head]
    run_fused(*(t[:, :, :64] for t in x[:4]))
    results = []
    extra = peak_above(lambda: results.append(run_fused(*x.qkv, grad, **options)))
    result = results[0]
    beyond = extra - sum(t.nbytes for t in result)
    assert beyond < 16 * 2**20, f"{beyond / 2**20:.1f} MiB"
    # One head carries the whole gradient, so that one head's formula is the reference.
    one = slice(head, head + 1)
    alone = result._replace(
        output=result.output[:, one],
        logsumexp=result.logsumexp[:, one],
        grad_query=result.grad_query[:, one],
    )
    assert_close_to_reference(alone, x.query[:, one], x.key, x.value, grad[:, one], **options)
    assert (result.grad_query[:, :head] == 0).all()
