"""FLOP counts for ``torch.utils.flop_counter``: the convention of torch's own attention.

A multiply-add counts as two, masks and causality are not subtracted.
"""

from __future__ import annotations

import torch
from torch.utils.flop_counter import register_flop_formula

__all__ = ["attention_backward_flops", "attention_forward_flops"]


def attention_forward_flops(query_shape, key_shape, value_shape, *args, **kwargs) -> int:
    """2 B Hq Sq Sk (D + Dv): the scores, and the sum of values."""
    batch, heads, seq_q, dim_qk = query_shape
    return 2 * batch * heads * seq_q * key_shape[-2] * (dim_qk + value_shape[-1])


def attention_backward_flops(
    grad_output_shape, grad_logsumexp_shape, query_shape, key_shape, value_shape, *args, **kwargs
) -> int:
    """2 B Hq Sq Sk (3 D + 2 Dv): the scores again, dV, dP, dQ, dK."""
    batch, heads, seq_q, dim_qk = query_shape
    return 2 * batch * heads * seq_q * key_shape[-2] * (3 * dim_qk + 2 * value_shape[-1])


register_flop_formula(torch.ops.fused_attention.attention_forward)(attention_forward_flops)
register_flop_formula(torch.ops.fused_attention.attention_backward)(attention_backward_flops)
