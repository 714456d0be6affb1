"""The CUDA kernels on a GPU: results against the reference, streams, graphs, errors. Or in the
emulator, on small problems, what of this needs no GPU: see test/emulator/test_operator.py."""

import pytest
import torch

from cases import Shape, dtype_id, make, run_fused
from cuda_device import count_launches, to_cuda
from far_apart import far_apart
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


@pytest.mark.parametrize(
    ("sizes", "forward", "backward"),
    [
        ((0, 5, 7), 0, 0),
        ((2, 0, 7), 0, 0),
        ((2, 5, 0), 1, 1),  # results have rows, and no key has a gradient
        ((2, 5, 7), 1, 2),
    ],
    ids=str,
)
def test_empty_inputs_launch_nothing_on_cuda(sizes, forward, backward):
    batch, seq_q, seq_k = sizes
    x = make(Shape(batch, 2, 2, seq_q, seq_k, 64, 64))
    assert count_launches(lambda: check(*x.qkv)) == forward
    assert count_launches(lambda: check(*x)) == forward + backward


def same(first: Result, second: Result) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True) if a is not None)


@pytest.mark.own_mode
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=dtype_id)
@pytest.mark.parametrize("which", ["query", "key", "value", "grad_output", "attn_mask"])
def test_f16_element_offsets_beyond_two_to_the_31_on_cuda(which, dtype):
    names = ("query", "key", "value", "grad_output", "grad_logsumexp")
    x = make(Shape(3, 2, 2, 4, 4, 16, 16), dtype)
    operands = {name: to_cuda(t) for name, t in zip(names, x, strict=True)}
    if which == "attn_mask":
        operands[which] = to_cuda(torch.randn(3, 2, 4, 4).to(dtype))
    want = run_fused(**operands)
    operands[which] = far_apart(operands[which])
    assert same(run_fused(**operands), want)


STREAM_SHAPES = (
    Shape(2, 4, 2, 128, 128, 64, 64),
    Shape(1, 2, 2, 100, 130, 256, 256),
    Shape(1, 8, 2, 2, 3000, 128, 128),  # whose keys are split: a second kernel merges
)


@pytest.mark.real_gpu
@pytest.mark.parametrize("shape", STREAM_SHAPES, ids=str)
def test_f44_forward_and_backward_run_on_the_current_stream(shape):
    x = [t.cuda() for t in make(shape, torch.bfloat16)]
    want = run_fused(*x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late = [torch.zeros_like(t).copy_(t) for t in x]
        got = run_fused(*late)
    stream.synchronize()
    assert same(got, want)


@pytest.mark.real_gpu
@pytest.mark.parametrize("shape", STREAM_SHAPES, ids=str)
def test_f44_forward_and_backward_are_captured_into_a_graph(shape):
    x = [t.cuda() for t in make(shape, torch.bfloat16)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # as torch's documentation warms autograd up
        run_fused(*x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = run_fused(*x)
    for _ in range(2):
        for t in x:
            t.copy_(torch.randn_like(t))
        graph.replay()
        torch.cuda.synchronize()
        assert same(replayed, run_fused(*x))


@pytest.mark.real_gpu
def test_f44_tensors_on_another_device_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    x = make(Shape(2, 4, 2, 100, 128, 64, 64), torch.bfloat16)
    with torch.cuda.device(0):
        got = run_fused(*(t.to("cuda:1") for t in x))
        assert torch.cuda.current_device() == 0
    assert all(t.device == torch.device("cuda:1") for t in got if t is not None)
    assert_close_to_reference(Result(*(t if t is None else t.cpu() for t in got)), *x)


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
