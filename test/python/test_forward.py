"""Output and LSE against the reference: sizes, head groups, dtypes, scales, bands, every ISA."""

import math

import pytest
import torch

from cases import DTYPES, GROUPS, SHAPES, Shape, check, dtype_id, make, run_fused
from reference import INT64_MAX, INT64_MIN

BANDS = (
    {"is_causal": True},
    {"is_causal": True, "diagonal_offset": 5},
    {"is_causal": True, "diagonal_offset": -40},
    {"window_size": (0, 0)},
    {"window_size": (0, 0), "diagonal_offset": 17},
    {"window_size": (-1, 3)},
    {"window_size": (4, -1)},
    {"window_size": (33, 20), "diagonal_offset": -3},
    {"is_causal": True, "window_size": (31, 0)},
    {"is_causal": True, "window_size": (64, 64), "diagonal_offset": 13},
    {"is_causal": True, "window_size": (0, -1)},
)
EXTREME_BANDS = tuple(
    {"diagonal_offset": offset, **band}
    for offset in (INT64_MAX, INT64_MIN, 2**62, -(2**62), 2**31, -(2**31), 2**32)
    for band in (
        {"is_causal": True},
        {"window_size": (3, 3)},
        {"is_causal": True, "window_size": (INT64_MAX, INT64_MAX)},
    )
)


def band_id(band):
    return "-".join(f"{k}={v}" for k, v in band.items()).replace(" ", "")


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_of_any_size_equals_reference(isa, shape, dtype):
    check(*make(shape, dtype).qkv)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("shape", SHAPES[3:], ids=str)
def test_causal_forward_of_any_size_equals_reference(isa, shape, dtype):
    check(*make(shape, dtype).qkv, is_causal=True, diagonal_offset=shape.seq_k - shape.seq_q)


@pytest.mark.parametrize("lengths", [(31, 127), (129, 33), (130, 130), (1, 70)], ids=str)
@pytest.mark.parametrize("band", BANDS, ids=band_id)
def test_forward_under_a_band_equals_reference(isa, band, lengths):
    check(*make(Shape(1, 2, 1, *lengths, 16, 16)).qkv, **band)


@pytest.mark.parametrize("band", EXTREME_BANDS, ids=band_id)
def test_forward_under_an_extreme_offset_equals_reference(band):
    x = make(Shape(1, 2, 1, 5, 7, 4, 4))
    result = check(*x, **band)
    assert not result.output.isnan().any()


@pytest.mark.parametrize("left", [INT64_MAX, 2**62, 2**31])
@pytest.mark.parametrize("offset", [INT64_MAX, INT64_MIN, 0])
def test_forward_with_a_huge_window_and_offset_equals_reference(left, offset):
    x = make(Shape(1, 1, 1, 4, 6, 3, 3))
    for window in ((left, -1), (-1, left), (left, left), (left, 0), (0, left)):
        check(*x, window_size=window, diagonal_offset=offset)


@pytest.mark.parametrize("scale", [0.0, -0.5, 1.0, 3.0, 1e-30])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_any_finite_scale_is_used(isa, dtype, scale):
    check(*make(Shape(1, 2, 1, 33, 40, 24, 24), dtype), scale=scale, is_causal=True)


def test_scale_zero_gives_the_mean_of_the_visible_values(isa):
    x = make(Shape(1, 1, 1, 9, 9, 4, 4))
    out = run_fused(*x.qkv, scale=0.0, is_causal=True).output
    mean = x.value.cumsum(2) / torch.arange(1, 10).view(9, 1)
    torch.testing.assert_close(out, mean)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_query_head_reads_its_own_key_value_head(isa, group):
    heads_q, heads_kv = GROUPS[group]
    x = make(Shape(2, heads_q, heads_kv, 19, 35, 8, 8))
    value = torch.arange(float(heads_kv)).view(1, -1, 1, 1).expand(2, -1, 35, 8)
    out = run_fused(x.query, x.key, value).output
    want = (torch.arange(heads_q) // (heads_q // heads_kv)).float()
    torch.testing.assert_close(out, want.view(1, -1, 1, 1).expand_as(out))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_logsumexp_is_natural_contiguous_and_wide(isa, dtype):
    x = make(Shape(2, 3, 3, 6, 9, 8, 8), dtype)
    logsumexp = run_fused(*x.qkv, scale=0.5).logsumexp
    assert logsumexp.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert logsumexp.shape == (2, 3, 6)
    assert logsumexp.is_contiguous()
    want = torch.logsumexp(0.5 * x.query.double() @ x.key.double().transpose(-1, -2), -1)
    torch.testing.assert_close(logsumexp.double(), want, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("broadcast", ["key", "value", "both"])
def test_key_and_value_of_batch_one_broadcast_over_the_batch(isa, broadcast, dtype):
    x = make(Shape(5, 4, 2, 17, 20, 8, 8), dtype)
    key = x.key[:1] if broadcast in ("key", "both") else x.key
    value = x.value[:1] if broadcast in ("value", "both") else x.value
    check(x.query, key, value, x.grad_output, x.grad_logsumexp)


@pytest.mark.parametrize("magnitude", [1e4, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=dtype_id)
def test_large_whole_logits_keep_their_differences(isa, dtype, magnitude):
    # Scores are the magnitude plus small whole numbers, exact in float32: their differences count.
    seq = 40
    query = torch.stack([torch.full((seq,), magnitude), torch.arange(seq) % 4.0], -1)
    key = torch.stack([torch.full((seq,), 1.0), torch.arange(seq) % 8.0], -1)
    query, key = (t.view(1, 1, seq, 2).to(dtype) for t in (query, key))
    value, grad = (torch.randn(1, 1, seq, 8).to(dtype) for _ in range(2))
    check(query, key, value, grad, scale=1.0)
    check(query, key, value, grad, scale=1.0, is_causal=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_every_element_is_written(isa, nan_filled, dtype):
    for shape in SHAPES[1:12]:
        x = make(shape, dtype)
        results = (run_fused(*x), run_fused(*x, is_causal=True), run_fused(*x, window_size=(1, 0)))
        for result in results:
            assert not any(t.isnan().any() for t in result)


def test_result_does_not_depend_on_what_else_is_in_the_batch(isa):
    x = make(Shape(3, 2, 2, 40, 70, 16, 16))
    whole = run_fused(*x.qkv, is_causal=True)
    for b in range(3):
        alone = run_fused(*(t[b : b + 1] for t in x.qkv), is_causal=True)
        assert torch.equal(alone.output, whole.output[b : b + 1])
        assert torch.equal(alone.logsumexp, whole.logsumexp[b : b + 1])


def test_isas_agree_to_rounding():
    import fused_attention

    x = make(Shape(1, 4, 2, 65, 70, 48, 48))
    before = fused_attention.cpu.active_isa()
    results = []
    for name in fused_attention.cpu.isas():
        fused_attention.cpu.set_isa(name)
        results.append(run_fused(*x, is_causal=True))
    fused_attention.cpu.set_isa(before)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-5)


def test_one_visible_key_gives_its_value_exactly(isa):
    for dtype in DTYPES:
        x = make(Shape(1, 2, 1, 50, 50, 24, 24), dtype)
        out = run_fused(*x.qkv, window_size=(0, 0)).output
        assert torch.equal(out, x.value.expand_as(out))


def test_identical_queries_give_identical_rows(isa):
    x = make(Shape(1, 1, 1, 1, 77, 32, 32))
    result = run_fused(x.query.expand(1, 1, 70, 32).contiguous(), x.key, x.value)
    torch.testing.assert_close(
        result.output, result.output[:, :, :1].expand_as(result.output), atol=1e-6, rtol=1e-6
    )
    assert math.isfinite(result.logsumexp.sum().item())
