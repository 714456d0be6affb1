"""The CUDA kernels on a GPU: results against the reference, streams, graphs, errors. Or in the
emulator, on small problems, what of this needs no GPU: see test/emulator/test_operator.py."""

import pytest
import torch

from cases import Shape, dtype_id, make, run_fused
from cuda_device import to_cuda
from reference import Result, assert_close_to_reference

pytestmark = pytest.mark.gpu

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
SHAPES = (
    Shape(2, 4, 2, 200, 333, 64, 64),
    Shape(1, 8, 1, 130, 257, 128, 128),
    Shape(1, 2, 2, 65, 190, 96, 80),
    Shape(1, 4, 2, 70, 130, 192, 128),
    Shape(1, 2, 1, 90, 140, 256, 256),
    Shape(1, 4, 1, 33, 100, 576, 512),
    Shape(2, 3, 3, 17, 29, 17, 5),
    Shape(3, 8, 2, 1, 500, 64, 64),
    Shape(1, 8, 2, 2, 3000, 128, 128),
)


def check(*inputs, **options):
    """Runs on the GPU, holds the result against the reference on the CPU."""
    actual = run_fused(*map(to_cuda, inputs), **{k: to_cuda(v) for k, v in options.items()})
    actual = Result(*(t if t is None else t.cpu() for t in actual))
    assert_close_to_reference(actual, *inputs, **options)
    return actual


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_on_cuda_equals_reference(shape, dtype, is_causal):
    check(*make(shape, dtype).qkv, is_causal=is_causal, diagonal_offset=shape.seq_k - shape.seq_q)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float32, torch.bfloat16], ids=dtype_id)
def test_forward_on_cuda_with_a_mask_equals_reference(dtype, mask_dtype):
    shape = Shape(2, 4, 2, 70, 150, 64, 64)
    visible = torch.rand(2, 1, 70, 150) < 0.7
    visible[:, :, 11] = False
    mask = visible
    if mask_dtype != torch.bool:
        mask = torch.where(visible, torch.randn(2, 1, 70, 150), -torch.inf).to(mask_dtype)
    check(*make(shape, dtype).qkv, attn_mask=mask, window_size=(60, 40))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_forward_on_cuda_reads_any_strides_and_keeps_queries_order(dtype):
    x = make(Shape(2, 4, 2, 60, 90, 40, 24), dtype)
    query = x.query.transpose(1, 2).contiguous().transpose(1, 2)
    key = x.key.transpose(2, 3).contiguous().transpose(2, 3)
    value = torch.stack([x.value, x.value], -1)[..., 0]
    actual = check(query, key, value, is_causal=True, scale=-0.3)
    assert actual.output.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_nan_that_nobody_sees_changes_nothing_on_cuda(dtype):
    clean = make(Shape(1, 2, 1, 40, 100, 64, 64), dtype)
    key, value = clean.key.clone(), clean.value.clone()
    key[..., 40:, 3] = torch.nan
    value[..., 40:, 5] = torch.inf
    want = run_fused(*map(to_cuda, clean.qkv), is_causal=True)
    got = run_fused(*map(to_cuda, (clean.query, key, value)), is_causal=True)
    assert torch.equal(got.output, want.output)
    assert torch.equal(got.logsumexp, want.logsumexp)


@pytest.mark.parametrize("sizes", [(0, 5, 7), (2, 0, 7), (2, 5, 0)], ids=str)
def test_empty_inputs_launch_nothing_that_fails_on_cuda(sizes):
    batch, seq_q, seq_k = sizes
    check(*make(Shape(batch, 2, 2, seq_q, seq_k, 64, 64)).qkv)


@pytest.mark.real_gpu
def test_forward_runs_on_the_current_stream():
    x = [t.cuda() for t in make(Shape(2, 4, 4, 128, 128, 64, 64), torch.bfloat16).qkv]
    want = run_fused(*x).output
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late = [torch.zeros_like(t).copy_(t) for t in x]
        got = run_fused(*late).output
    stream.synchronize()
    assert torch.equal(got, want)


@pytest.mark.real_gpu
def test_forward_is_captured_into_a_graph():
    x = [t.cuda() for t in make(Shape(2, 4, 2, 100, 128, 64, 64), torch.bfloat16).qkv]
    run_fused(*x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run_fused(*x).output
    for t in x:
        t.copy_(torch.randn_like(t))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(output, run_fused(*x).output)


def test_head_dim_beyond_the_largest_kernel_is_an_error():
    query = to_cuda(torch.zeros(1, 1, 2, 577, dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match="head dim D of at most 576"):
        run_fused(query, query, query)
    run_fused(query.float(), query.float(), query.float())


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backward_on_cuda_equals_reference(shape, dtype, is_causal):
    offset = shape.seq_k - shape.seq_q
    check(*make(shape, dtype), is_causal=is_causal, diagonal_offset=offset)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("dim", [64, 320])
def test_backward_on_cuda_with_a_mask_equals_reference(dtype, dim):
    visible = torch.rand(2, 1, 70, 150) < 0.7
    visible[:, :, 11] = False
    check(*make(Shape(2, 4, 2, 70, 150, dim, 64), dtype), attn_mask=visible)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_nan_that_nobody_sees_changes_no_gradient_on_cuda(dtype):
    clean = make(Shape(1, 2, 1, 40, 100, 64, 64), dtype)
    key, value = clean.key.clone(), clean.value.clone()
    key[..., 40:, 3] = torch.nan
    value[..., 40:, 5] = torch.inf
    want = run_fused(*map(to_cuda, clean), is_causal=True)
    got = run_fused(*map(to_cuda, clean._replace(key=key, value=value)), is_causal=True)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_backward_on_cuda_is_deterministic(dtype):
    x = [to_cuda(t) for t in make(Shape(2, 8, 2, 500, 700, 128, 128), dtype)]
    first, second = run_fused(*x), run_fused(*x)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_backward_beyond_the_largest_kernel_is_an_error():
    x = make(Shape(1, 1, 1, 4, 4, 64, 577), torch.bfloat16)
    with pytest.raises(RuntimeError, match="head dim Dv of at most 576"):
        run_fused(*map(to_cuda, x))
    run_fused(*(to_cuda(t if t is None else t.float()) for t in x))
