"""FLOP formulas: what torch counts for its own attention."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cases import Shape, make

ops = torch.ops.fused_attention


def count(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def test_toy_count_of_the_facts():
    # n = 128, d = 512 in 8 heads: 16,777,216 multiply-adds, whatever the number of heads.
    for heads in (8, 1):
        q = torch.empty(1, heads, 128, 512 // heads)
        assert count(lambda q=q: ops.attention(q, q, q)) == 2 * 16_777_216


@pytest.mark.parametrize("heads_kv", [64, 8, 1])
def test_one_decoded_token_counts_the_same_for_every_grouping(heads_kv):
    q = torch.empty(1, 64, 1, 128, device="meta")
    k = torch.empty(1, heads_kv, 8192, 128, device="meta")
    assert count(lambda: ops.attention(q, k, k)) == 2 * 134_217_728


def test_backward_counts_five_products():
    b, h, sq, sk, d, dv = 2, 6, 33, 45, 8, 5
    x = make(Shape(b, h, 2, sq, sk, d, dv))
    inputs = [t.clone().requires_grad_() for t in x.qkv]
    forward = 2 * b * h * sq * sk * (d + dv)
    backward = 2 * b * h * sq * sk * (3 * d + 2 * dv)
    assert count(lambda: ops.attention(*inputs)) == forward
    assert count(lambda: ops.attention(*inputs).sum().backward()) == forward + backward
