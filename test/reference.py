"""The oracle: attention as one materialised formula, and the tolerance derived from it.

`attention` computes in whatever dtype it is told to (float64 unless said otherwise), so the same
lines are the truth (float64) and the plain same-dtype computation that sets the tolerance.
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


class _Softmax(NamedTuple):
    weights: Tensor  # (B, Hq, Sq, Sk), 0 where hidden
    logsumexp: Tensor
    value: Tensor  # as the weights need it: (B, Hq, Sk, Dv)
    visible: Tensor


def _softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    diagonal_offset: int = 0,
    window_size: tuple[int, int] = (-1, -1),
    compute_dtype: torch.dtype = torch.float64,
    stored_dtype: torch.dtype | None = None,
) -> _Softmax:
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

    scores = _masked_scores(q, k, visible)
    if stored_dtype is not None and scores.requires_grad:
        scores.register_hook(lambda grad: grad.to(stored_dtype).to(compute_dtype))
    scores = scale * scores
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
    logsumexp = torch.where(empty, -math.inf, maximum + torch.log(total)).squeeze(-1)
    return _Softmax(weights / total, logsumexp, v, visible)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *masking,
    stored_dtype: torch.dtype | None = None,
    compute_dtype: torch.dtype = torch.float64,
    **options,
) -> tuple[Tensor, Tensor]:
    """Returns (output (B, Hq, Sq, Dv), LSE (B, Hq, Sq)) in `compute_dtype`; differentiable.

    `stored_dtype` rounds the softmax weights and the gradients of weights and scores: the (Sq, Sk)
    tensors that eager code in a low precision stores.
    """
    weights, logsumexp, v, visible = _softmax(
        query,
        key,
        value,
        *masking,
        compute_dtype=compute_dtype,
        stored_dtype=stored_dtype,
        **options,
    )
    if stored_dtype is not None:
        weights = weights.to(stored_dtype).to(compute_dtype)
    return _masked_sum(weights, v, visible), logsumexp


def _masked_scores(q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
    """q k^T where visible, 0 elsewhere; the hidden touches neither value nor gradient."""
    if q.detach().isfinite().all() and k.detach().isfinite().all():
        return torch.where(visible, q @ k.transpose(-1, -2), 0.0)
    # 0 * NaN is NaN, in the gradient too: both factors are replaced before they meet.
    shown = visible.unsqueeze(-1)
    return (
        torch.where(shown, q.unsqueeze(-2), 0.0) * torch.where(shown, k.unsqueeze(-3), 0.0)
    ).sum(-1)


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
    **options,
) -> Result:
    """Forward, and backward through autograd if a gradient is given."""
    wants = grad_output is not None or grad_logsumexp is not None
    leaves = [t.detach().to(compute_dtype).requires_grad_(wants) for t in (query, key, value)]
    with torch.enable_grad():
        output, logsumexp = attention(*leaves, compute_dtype=compute_dtype, **options)
    if not wants:
        return Result(output, logsumexp)
    # A row that sees nothing gets nothing from its gradients, NaN included.
    empty = logsumexp.detach() == -math.inf
    seeds = []
    stored_dtype = options.get("stored_dtype")
    if grad_output is not None:
        grad_output = torch.where(empty.unsqueeze(-1), 0.0, grad_output.to(compute_dtype))
        seeds.append((output, grad_output))
    if grad_output is not None and stored_dtype is not None:
        # dS = P (dP - rowsum(dO O) + dLSE) reads O as stored: its rounding is an error of dLSE.
        rounding = output.detach().to(stored_dtype).to(compute_dtype) - output.detach()
        seeds.append((logsumexp, -(grad_output * rounding).sum(-1)))
    if grad_logsumexp is not None:
        seeds.append((logsumexp, torch.where(empty, 0.0, grad_logsumexp.to(compute_dtype))))
    outputs, grad_outputs = zip(*seeds, strict=True)
    grads = torch.autograd.grad(outputs, leaves, grad_outputs, allow_unused=True)
    zeros = [torch.zeros_like(t) if g is None else g for g, t in zip(grads, leaves, strict=True)]
    return Result(output.detach(), logsumexp.detach(), *zeros)


def plain(query: Tensor, key: Tensor, value: Tensor, *grads: Tensor | None, **options) -> Result:
    """The plain computation in the tensors' own precision: what eager code of that dtype achieves.

    float32 computes throughout in float32, and so does float64: see `allowed_error`. In bfloat16
    and float16 scores, softmax and sums are float32; weights and the gradients of weights and
    scores are rounded to the dtype, as is every result, the output that backward reads included.
    """
    dtype = query.dtype
    low = dtype in LOW_PRECISION
    options["stored_dtype"] = dtype if low else None
    result = run(query, key, value, *grads, compute_dtype=torch.float32, **options)
    if not low:
        return result
    rounded = [t if t is None else t.to(dtype) for t in result]
    return Result(*rounded)._replace(logsumexp=result.logsumexp)


def _rounding_of_sums(
    query, key, value, grad_output, grad_logsumexp, **options
) -> dict[str, float]:
    """The error that sums which cancel cannot avoid, for the gradients of query and key.

    dS = P (dP - rowsum(dO O) + dLSE) is small where its terms are not. Two sums of Dv products, in
    orders of their own, differ by (1 + sqrt(Dv)) roundings of the terms; and O is read back as it
    is stored, rounded, which moves a row's sum by up to a rounding of sum |dO O|, whatever the luck
    of the plain computation with its own roundings.
    """
    if grad_output is None or not all(t.isfinite().all() for t in (query, key, value)):
        return {}
    dtype = query.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    q, k, v = (t.detach().double().abs() for t in (query, key, value))
    with torch.no_grad():
        weights, logsumexp, visible_v, _ = _softmax(query.double(), key, v, **options)
        output = run(query, key, value, **options).output
        seen = logsumexp.unsqueeze(-1) != -math.inf
        grad = torch.where(seen, grad_output.double().abs(), 0.0)
        scale = options.get("scale")
        scale = abs(1.0 / math.sqrt(query.size(-1)) if scale is None else scale)
        of_sums = (1 + math.sqrt(value.size(-1))) * torch.finfo(wide).eps / 2
        error = of_sums * (grad @ visible_v.transpose(-1, -2))
        error = error + torch.finfo(dtype).eps / 2 * (grad * output.abs()).sum(-1, keepdim=True)
        error = scale * weights * error
        group = query.size(1) // max(key.size(1), 1)
        k = k.expand(query.size(0), -1, -1, -1).repeat_interleave(group, dim=1)
        of_key = (error.transpose(-1, -2) @ q).unflatten(1, (-1, group)).sum(2)
        if key.size(0) == 1:
            of_key = of_key.sum(0)
        return {"grad_query": _largest(error @ k), "grad_key": _largest(of_key)}


def _largest(t: Tensor) -> float:
    t = t[t.isfinite()]
    return t.abs().max().item() if t.numel() else 0.0


def allowed_error(name: str, expected: Tensor, plain_value: Tensor, dtype: torch.dtype) -> float:
    """Twice the plain computation's largest error, plus a floor.

    Nothing wider than float64 is at hand: its error is float32's, scaled by the ratio of roundings.
    """
    wide = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    # Where the plain one overflows it sets no standard: _largest leaves that out.
    error = _largest((plain_value.double() - expected)[expected.isfinite()])
    if dtype == torch.float64:
        error *= wide / torch.finfo(torch.float32).eps
    rounding = wide
    if name != "logsumexp" and dtype in LOW_PRECISION:
        rounding = torch.finfo(dtype).eps / 2
    return 2.0 * error + FLOOR[dtype] + rounding * _largest(expected)


def assert_close_to_reference(
    actual: Result,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    grad_output: Tensor | None = None,
    grad_logsumexp: Tensor | None = None,
    **options,
) -> Result:
    """Compares what `actual` holds with the float64 formula; returns the latter."""
    inputs = (query, key, value, grad_output, grad_logsumexp)
    expected = run(*inputs, **options)
    standard = plain(*inputs, **options)
    of_sums = _rounding_of_sums(*inputs, **options)
    dtype = query.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for name, got, want, same in zip(Result._fields, actual, expected, standard, strict=True):
        if got is None:
            continue
        allowed = allowed_error(name, want, same, dtype)
        assert_close(name, got, want, allowed + of_sums.get(name, 0.0))
        assert got.dtype == (wide if name == "logsumexp" else dtype), f"{name} has {got.dtype}"
    return expected


def assert_close(name: str, got: Tensor, want: Tensor, atol: float) -> None:
    """Same shape, same NaN and infinities, and |got - want| <= atol everywhere else."""
    assert got.shape == want.shape, f"{name}: shape {tuple(got.shape)} != {tuple(want.shape)}"
    got = got.detach().double()
    finite = want.isfinite()
    odd = torch.where(finite, got.isfinite(), torch.eq(got, want) | (got.isnan() & want.isnan()))
    if not odd.all():
        where = tuple((~odd).nonzero()[0].tolist())
        raise AssertionError(
            f"{name}{list(where)}: got {got[where].item()}, want {want[where].item()}"
        )
    difference = torch.where(finite, (got - want).abs(), 0.0)
    if difference.numel() and difference.max().item() > atol:
        where = tuple((difference == difference.max()).nonzero()[0].tolist())
        raise AssertionError(
            f"{name}{list(where)}: got {got[where].item():.9g}, want {want[where].item():.9g}; "
            f"error {difference.max().item():.3g} > {atol:.3g}"
        )
