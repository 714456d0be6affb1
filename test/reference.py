"""The oracle: attention as one materialised formula, and the tolerance derived from it.

`attention` computes in whatever dtype it is told to (float64 unless said otherwise), so the same lines
are the truth (float64) and the plain same-dtype computation that sets the tolerance.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LOW_PRECISION = (torch.bfloat16, torch.float16)
FLOOR = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 1e-5, torch.float16: 1e-5}
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)


class Result(NamedTuple):
    """What one call gives: output, LSE, and the gradients that were asked for (None otherwise)."""

    output: Tensor
    logsumexp: Tensor
    grad_query: Tensor | None = None
    grad_key: Tensor | None = None
    grad_value: Tensor | None = None


def visible_keys(
    seq_q: int,
    seq_k: int,
    is_causal: bool = False,
    diagonal_offset: int = 0,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """(Sq, Sk) bool, written with Python integers so that no offset overflows."""
    left, right = window_size
    rows = []
    for i in range(seq_q):
        centre = i + diagonal_offset
        low = 0 if left < 0 else centre - left
        high = seq_k - 1 if right < 0 else centre + right
        if is_causal:
            high = min(high, centre)
        low, high = max(low, 0), min(high, seq_k - 1)
        row = torch.zeros(seq_k, dtype=torch.bool)
        if low <= high:
            row[low : high + 1] = True
        rows.append(row)
    return torch.stack(rows) if rows else torch.zeros(0, seq_k, dtype=torch.bool)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    diagonal_offset: int = 0,
    window_size: tuple[int, int] = (-1, -1),
    compute_dtype: torch.dtype = torch.float64,
    weight_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns (output (B, Hq, Sq, Dv), LSE (B, Hq, Sq)) in `compute_dtype`; differentiable.

    `weight_dtype` rounds the softmax weights before they meet the values, as eager code in a low
    precision does.
    """
    batch, heads_q, seq_q, dim = query.shape
    heads_kv, seq_k = key.shape[1], key.shape[2]
    scale = 1.0 / math.sqrt(dim) if scale is None else scale
    q = query.to(compute_dtype)
    # repeat_interleave puts kv head h // (Hq / Hkv) under query head h.
    k, v = (
        t.to(compute_dtype).expand(batch, -1, -1, -1).repeat_interleave(heads_q // heads_kv, dim=1)
        for t in (key, value)
    )

    visible = visible_keys(seq_q, seq_k, is_causal, diagonal_offset, window_size)
    visible = visible.expand(batch, heads_q, seq_q, seq_k)
    bias = None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = visible & attn_mask
    elif attn_mask is not None:
        visible = visible & (attn_mask != -math.inf)
        largest = torch.finfo(compute_dtype).max
        bias = attn_mask.detach().double().clamp(-largest, largest).to(compute_dtype)

    scores = scale * _masked_scores(q, k, visible)
    if bias is not None:
        scores = torch.where(visible, scores + torch.where(visible, bias, 0.0), 0.0)
    empty = ~visible.any(-1, keepdim=True)
    if seq_k == 0:
        maximum = torch.zeros_like(empty, dtype=compute_dtype)
    else:
        maximum = torch.where(visible, scores, -math.inf).amax(-1, keepdim=True)
        maximum = torch.where(empty, 0.0, maximum).detach()
    weights = torch.where(visible, torch.exp(scores - maximum), 0.0)
    total = torch.where(empty, 1.0, weights.sum(-1, keepdim=True))
    weights = weights / total
    if weight_dtype is not None:
        weights = weights.to(weight_dtype).to(compute_dtype)
    output = _masked_sum(weights, v, visible)
    logsumexp = torch.where(empty, -math.inf, maximum + torch.log(total)).squeeze(-1)
    return output, logsumexp


def _masked_scores(q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
    """q k^T where visible, 0 elsewhere; what is hidden touches neither the value nor the gradient."""
    if q.detach().isfinite().all() and k.detach().isfinite().all():
        return torch.where(visible, q @ k.transpose(-1, -2), 0.0)
    # 0 * NaN is NaN, in the gradient too: both factors are replaced before they meet.
    shown = visible.unsqueeze(-1)
    return (torch.where(shown, q.unsqueeze(-2), 0.0) * torch.where(shown, k.unsqueeze(-3), 0.0)).sum(-1)


def _masked_sum(weights: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    if v.detach().isfinite().all() and weights.detach().isfinite().all():
        return weights @ v
    shown = visible.unsqueeze(-1)
    return (
        torch.where(shown, weights.unsqueeze(-1), 0.0) * torch.where(shown, v.unsqueeze(-3), 0.0)
    ).sum(-2)


def run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    grad_output: Tensor | None = None,
    grad_logsumexp: Tensor | None = None,
    compute_dtype: torch.dtype = torch.float64,
    weight_dtype: torch.dtype | None = None,
    **options,
) -> Result:
    """Forward, and backward through autograd if a gradient is given."""
    leaves = [t.detach().to(compute_dtype).requires_grad_() for t in (query, key, value)]
    with torch.enable_grad():
        output, logsumexp = attention(
            *leaves, compute_dtype=compute_dtype, weight_dtype=weight_dtype, **options
        )
    if grad_output is None and grad_logsumexp is None:
        return Result(output.detach(), logsumexp.detach())
    seeds = [
        (out, grad.detach().to(compute_dtype))
        for out, grad in ((output, grad_output), (logsumexp, grad_logsumexp))
        if grad is not None
    ]
    # A row that sees nothing gets nothing from its output gradient, NaN included.
    empty = logsumexp.detach() == -math.inf
    seeds = [
        (out, torch.where(empty.reshape(empty.shape + (1,) * (grad.dim() - empty.dim())), 0.0, grad))
        for out, grad in seeds
    ]
    outputs, grad_outputs = zip(*seeds)
    grads = torch.autograd.grad(outputs, leaves, grad_outputs, allow_unused=True)
    grads = [torch.zeros_like(t) if g is None else g for g, t in zip(grads, leaves)]
    return Result(output.detach(), logsumexp.detach(), *grads)


def plain(query: Tensor, key: Tensor, value: Tensor, *grads: Tensor | None, **options) -> Result:
    """The plain computation in the tensors' own precision: what eager code of that dtype achieves.

    float32 and float64 compute throughout in their dtype. In bfloat16 and float16 scores, softmax and
    sums are float32, the weights and every result are rounded to the dtype: the strictest eager form.
    """
    dtype = query.dtype
    if dtype not in LOW_PRECISION:
        return run(query, key, value, *grads, compute_dtype=dtype, **options)
    result = run(
        query, key, value, *grads, compute_dtype=torch.float32, weight_dtype=dtype, **options
    )
    rounded = [t if t is None else t.to(dtype) for t in result]
    return Result(*rounded)._replace(logsumexp=result.logsumexp)


def tolerance(name: str, expected: Tensor, plain_value: Tensor, dtype: torch.dtype) -> float:
    """Twice the plain computation's largest error, plus a floor."""
    finite = expected.isfinite()
    error = (plain_value.double() - expected)[finite].abs()
    error = error[error.isfinite()]  # where the plain one overflows it sets no standard
    largest = expected[finite].abs().max().item() if finite.any() else 0.0
    floor = FLOOR[dtype]
    if name != "logsumexp" and dtype in LOW_PRECISION:
        floor += largest * torch.finfo(dtype).eps / 2  # rounding of the result itself
    elif largest > 1.0:
        floor += largest * torch.finfo(dtype if dtype == torch.float64 else torch.float32).eps
    return (2.0 * error.max().item() if error.numel() else 0.0) + floor


def assert_close_to_reference(
    actual: Result,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    grad_output: Tensor | None = None,
    grad_logsumexp: Tensor | None = None,
    **options,
) -> Result:
    """Compares every field of `actual` that is not None with the float64 formula; returns the latter."""
    grads = (grad_output, grad_logsumexp)
    expected = run(query, key, value, *grads, **options)
    standard = plain(query, key, value, *grads, **options)
    dtype = query.dtype
    for name, got, want, same_dtype in zip(Result._fields, actual, expected, standard):
        if got is None:
            continue
        assert_close(name, got, want, tolerance(name, want, same_dtype, dtype))
        wanted_dtype = dtype
        if name == "logsumexp":
            wanted_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        assert got.dtype == wanted_dtype, f"{name} has dtype {got.dtype}"
    return expected


def assert_close(name: str, got: Tensor, want: Tensor, atol: float) -> None:
    """Same shape, same NaN and infinities, and |got - want| <= atol everywhere else."""
    assert got.shape == want.shape, f"{name}: shape {tuple(got.shape)} != {tuple(want.shape)}"
    got = got.detach().double()
    finite = want.isfinite()
    odd = torch.where(finite, got.isfinite(), torch.eq(got, want) | (got.isnan() & want.isnan()))
    if not odd.all():
        where = tuple((~odd).nonzero()[0].tolist())
        raise AssertionError(f"{name}{list(where)}: got {got[where].item()}, want {want[where].item()}")
    difference = torch.where(finite, (got - want).abs(), 0.0)
    if difference.numel() and difference.max().item() > atol:
        where = tuple((difference == difference.max()).nonzero()[0].tolist())
        raise AssertionError(
            f"{name}{list(where)}: got {got[where].item():.9g}, want {want[where].item():.9g}; "
            f"error {difference.max().item():.3g} > {atol:.3g}"
        )
