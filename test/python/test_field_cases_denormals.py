"""Field case F38: masks of every form that hide the same keys; weights too small to be normal."""

import pytest
import torch

from cases import Shape, check, dtype_id, make, run_fused
from process_memory import peak_above

SHAPE = Shape(4, 8, 8, 512, 512, 64, 64)
LENGTHS = torch.tensor([512, 40, 40, 40])


def padding(form, dtype=torch.float32, keys=SHAPE.seq_k):
    seen = torch.arange(keys) < LENGTHS[:, None, None, None]
    if form == "bool":
        return seen
    hidden = {"infinity": -torch.inf, "lowest": torch.finfo(dtype).min, "-1e30": -1e30}[form]
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, hidden)


@pytest.mark.parametrize("form", ["bool", "infinity", "lowest", "-1e30"])
def test_f38_padding_hides_in_every_form_as_the_shorter_keys_do(isa, form):
    x = make(SHAPE._replace(heads_q=2, heads_kv=2, seq_q=64, dim=16, dim_v=16))
    got = check(*x, attn_mask=padding(form))
    for b, length in enumerate(LENGTHS.tolist()):
        row = [t[b : b + 1] for t in x]
        row[1], row[2] = row[1][:, :, :length], row[2][:, :, :length]
        want = run_fused(*row)
        for name, a, w in zip(want._fields, got, want, strict=True):
            part = a[b : b + 1]
            if name in ("grad_key", "grad_value"):
                assert (part[:, :, length:] == 0).all(), name
                part = part[:, :, :length]
            torch.testing.assert_close(part, w, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.own_mode
@pytest.mark.parametrize("form", ["bool", "lowest"])
def test_f38_padding_mask_is_not_expanded(form):
    # Results of 2 MiB each, which the allocator may have kept; expanded, the mask would be 512 MiB
    # of float32, 128 of bool, which it never keeps.
    x = make(Shape(4, 8, 8, 2048, 2048, 8, 8))
    mask = padding(form, keys=2048)
    run_fused(*x)
    run_fused(*x, attn_mask=mask)
    plain = peak_above(lambda: run_fused(*x))
    assert peak_above(lambda: run_fused(*x, attn_mask=mask)) < plain + 32 * 2**20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=dtype_id)
def test_f38_weights_of_every_size_down_to_the_denormal_are_right(isa, dtype):
    # Scores fall from 0 to -110: weights from 1 over 1e-38, the smallest normal one, to 1e-48.
    query = torch.ones(1, 1, 3, 1, dtype=dtype)
    key = torch.linspace(0, -110, 300).reshape(1, 1, 300, 1).to(dtype)
    value, grad = torch.randn(1, 1, 300, 5).to(dtype), torch.randn(1, 1, 3, 5).to(dtype)
    check(query, key, value, grad, scale=1.0)


@pytest.mark.parametrize("flush", [False, True])
def test_f38_flush_mode_of_the_caller_is_left_as_found(isa, threads, flush):
    if not torch.set_flush_denormal(flush):
        pytest.skip("this CPU has no flush mode")
    try:
        run_fused(*make(Shape(2, 4, 2, 100, 300, 32, 32)))
        tiny = torch.tensor([1e-40]) * 0.5
        assert (tiny == 0).item() is flush
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("contiguous", [True, False])
def test_f38_subnormal_halves_are_read_alike_in_every_flush_mode(isa, contiguous):
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU has no flush mode")
    try:
        value = torch.full((1, 1, 2, 34), 2.0**-20, dtype=torch.float16)
        value = value[..., :17] if contiguous else value[..., ::2]
        zeros = torch.zeros(1, 1, 2, 4, dtype=torch.float16)
        output = run_fused(zeros, zeros, value).output
    finally:
        torch.set_flush_denormal(False)
    assert (output.double() == 2.0**-20).all()
