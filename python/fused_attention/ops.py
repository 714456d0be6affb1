"""The attention function with torch's argument names and defaults."""

from __future__ import annotations

import torch
from torch.nn.attention.bias import CausalBias, CausalVariant

__all__ = ["attention"]


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = True,
    *,
    diagonal_offset: int = 0,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale * query key^T + mask) value, as scaled_dot_product_attention.

    Args:
        query: (B, Hq, Sq, D), float32, float64, bfloat16 or float16, any strides. (H, S, D), (S, D)
            and further leading dimensions work too.
        key: (B or 1, Hkv, Sk, D). Query head h reads head h // (Hq // Hkv).
        value: (B or 1, Hkv, Sk, Dv).
        attn_mask: broadcasts to (B, Hq, Sq, Sk), aligned from the right; never expanded in memory.
            bool: True = attend. A float dtype: added in float32 (float64 for float64 inputs), -inf
            hides. Or a ``torch.nn.attention.bias.CausalBias``.
        dropout_p: only 0 is supported yet.
        is_causal: row i sees the keys j <= i + diagonal_offset (top-left, as torch).
        scale: any number up to +-1e38 (any finite one for float64), 1/sqrt(D) by default.
        enable_gqa: False makes Hq != Hkv an error.
        diagonal_offset: moves the diagonal of ``is_causal`` and ``window_size``; Sk - Sq aligns
            them bottom-right.
        window_size: (left, right), row i sees i + offset - left <= j <= i + offset + right, both
            inclusive, -1 = no limit.
        softcap, sinks, alibi_slopes, seqused_k: not supported yet, an error if given.
        return_lse: also return the natural logarithm of each row's sum of exp(score), (B, Hq, Sq),
            float32 (float64 for float64), differentiable.

    Returns:
        (B, Hq, Sq, Dv) in the stride order of query; 0 in rows that see nothing (their logsumexp is
        -inf). With ``return_lse`` a pair.

    Raises:
        RuntimeError: the arguments do not fit together; the message names rule and argument.
        TypeError: scale or diagonal_offset is a tensor (the operator's own conversion would drop
            its gradient or its fraction), is_causal is not a bool, or window_size is not a tuple or
            list of integers.
    """
    if scale is not None and isinstance(scale, torch.Tensor):
        raise TypeError(
            "fused_attention.attention: expected scale to be a number, but got a tensor"
        )
    if not isinstance(is_causal, bool):
        raise TypeError(
            f"fused_attention.attention: expected is_causal to be a bool, but got {is_causal!r}"
        )
    if attn_mask is not None and isinstance(attn_mask, CausalBias):
        diagonal_offset = _offset_of(attn_mask, query, key, is_causal, diagonal_offset)
        attn_mask, is_causal = None, True
    # Reading an argument costs torch a fair part of a microsecond: rare ones go only when given.
    rare: dict[str, object] = {}
    if scale is not None:
        rare["scale"] = scale
    if not enable_gqa:
        rare["enable_gqa"] = enable_gqa
    if diagonal_offset != 0:
        if isinstance(diagonal_offset, (torch.Tensor, float)):
            raise TypeError(
                "fused_attention.attention: expected diagonal_offset to be an integer, "
                f"but got {diagonal_offset!r}"
            )
        rare["diagonal_offset"] = diagonal_offset
    if window_size != (-1, -1):
        if not isinstance(window_size, (tuple, list)) or any(
            isinstance(limit, (torch.Tensor, float)) for limit in window_size
        ):
            raise TypeError(
                "fused_attention.attention: expected window_size to be (left, right), two "
                f"integers, but got {window_size!r}"
            )
        rare["window_size"] = window_size
    if softcap != 0.0:
        rare["softcap"] = softcap
    if sinks is not None:
        rare["sinks"] = sinks
    if alibi_slopes is not None:
        rare["alibi_slopes"] = alibi_slopes
    if seqused_k is not None:
        rare["seqused_k"] = seqused_k
    op = _attention_with_lse if return_lse else _attention
    return op(query, key, value, attn_mask, dropout_p, is_causal, **rare)


_attention = torch.ops.fused_attention.attention.default
_attention_with_lse = torch.ops.fused_attention.attention_with_lse.default


def _offset_of(
    bias: CausalBias,
    query: torch.Tensor,
    key: torch.Tensor,
    is_causal: bool,
    diagonal_offset: int,
) -> int:
    """The diagonal offset that a CausalBias means."""
    if is_causal or diagonal_offset != 0:
        raise RuntimeError(
            "fused_attention::attention: expected no is_causal and no diagonal_offset beside a "
            f"CausalBias, but got is_causal={is_causal} and diagonal_offset={diagonal_offset}"
        )
    if (bias.seq_len_q, bias.seq_len_kv) != (query.size(-2), key.size(-2)):
        raise RuntimeError(
            "fused_attention::attention: expected a CausalBias of the lengths (Sq, Sk) = "
            f"({query.size(-2)}, {key.size(-2)}), but got one of ({bias.seq_len_q}, "
            f"{bias.seq_len_kv})"
        )
    return bias.seq_len_kv - bias.seq_len_q if bias.variant == CausalVariant.LOWER_RIGHT else 0
