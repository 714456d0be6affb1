"""Extra memory is linear in S, in forward and backward, whatever the mask."""

import pytest
import torch

from cases import Shape, make, run_fused
from process_memory import peak_above

pytestmark = [pytest.mark.slow, pytest.mark.own_mode]
MIB = 2**20


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"window_size": (100, 100)},
        {"attn_mask": "bool"},
        {"attn_mask": "float"},
    ],
    ids=str,
)
def test_extra_memory_of_a_long_sequence_is_a_fraction_of_the_scores(options):
    seq = 8192  # the scores of one head would be 256 MiB in float32
    x = make(Shape(1, 1, 1, seq, seq, 16, 16))
    if "attn_mask" in options:
        keep = torch.rand(1, 1, 1, seq) < 0.9
        options = {"attn_mask": keep if options["attn_mask"] == "bool" else keep.float().log()}
    run_fused(*(t[:, :, :64] for t in x))
    assert peak_above(lambda: run_fused(*x, **options)) < 24 * MIB


def test_extra_memory_grows_at_most_linearly_with_the_length():
    def extra(seq):
        x = make(Shape(1, 2, 1, seq, seq, 32, 32))
        return peak_above(lambda: run_fused(*x, is_causal=True))

    extra(256)
    small, large = extra(1024), extra(4096)
    assert large < 4 * small + 6 * MIB


def test_keys_and_values_are_not_repeated_for_grouped_heads():
    # 32 query heads on one key head: a repeated K or V would be 64 MiB.
    x = make(Shape(1, 32, 1, 16, 8192, 64, 64))
    run_fused(*make(Shape(1, 32, 1, 16, 64, 64, 64)))
    assert peak_above(lambda: run_fused(*x)) < 24 * MIB


def test_float64_mask_is_not_copied():
    # The mask has 128 MiB; a converted or expanded copy would show.
    x = make(Shape(1, 8, 8, 2048, 2048, 8, 8))
    mask = torch.zeros(2048, 2048, dtype=torch.float64).expand(1, 8, 2048, 2048)
    assert peak_above(lambda: run_fused(*x, attn_mask=mask)) < 24 * MIB


def test_memory_is_given_back_after_the_call():
    import gc

    x = make(Shape(1, 2, 1, 2048, 2048, 64, 64))

    def growth():
        for _ in range(20):
            run_fused(*x)
        gc.collect()

    growth()
    assert peak_above(growth) < 32 * MIB
