"""Random calls rebuilt from the printed seed: shapes, strides, masks, dtypes, options together."""

import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from cases import DTYPES, Shape, check, make
from seeding import session_seed

LENGTHS = st.one_of(st.integers(0, 5), st.integers(6, 40), st.sampled_from([63, 64, 65, 100, 129]))
DIMS = st.one_of(st.integers(1, 9), st.sampled_from([16, 33, 64, 80]))
OFFSETS = st.one_of(st.integers(-70, 70), st.sampled_from([2**31, -(2**31), 2**63 - 1, -(2**63)]))
EDGES = st.one_of(st.just(-1), st.integers(0, 80), st.just(2**63 - 1))


@st.composite
def shapes(draw):
    heads_kv = draw(st.integers(1, 3))
    return Shape(
        draw(st.integers(1, 3)),
        heads_kv * draw(st.integers(1, 4)),
        heads_kv,
        draw(LENGTHS),
        draw(LENGTHS),
        draw(DIMS),
        draw(DIMS),
    )


@st.composite
def layouts(draw):
    """(order of the dims in memory, padding before each): what strided tensors are made of."""
    return draw(st.permutations(range(4))), draw(st.tuples(*[st.integers(0, 2)] * 4))


def laid_out(t, layout):
    order, padding = layout
    sizes = [t.size(d) + padding[d] for d in order]
    filler = True if t.dtype == torch.bool else torch.nan
    buffer = torch.full(sizes, filler, dtype=t.dtype).permute([order.index(d) for d in range(4)])
    return buffer[tuple(slice(p, None) for p in padding)].copy_(t)


@st.composite
def masks(draw, shape):
    kind = draw(st.sampled_from([None, torch.bool, *DTYPES]))
    if kind is None:
        return None
    full = (shape.batch, shape.heads_q, shape.seq_q, shape.seq_k)
    sizes = [draw(st.sampled_from([1, n])) for n in full]
    share = draw(st.sampled_from([0.0, 0.2, 0.9]))
    keep = torch.rand(sizes) < share
    mask = (
        keep if kind == torch.bool else torch.where(keep, torch.randn(sizes), -torch.inf).to(kind)
    )
    mask = laid_out(mask, draw(layouts()))
    ones = next((i for i, n in enumerate(sizes) if n != 1), 4)
    return mask[(0,) * draw(st.integers(0, min(ones, 3)))]


@seed(session_seed())
@settings(
    max_examples=250,
    deadline=None,
    database=None,  # the printed seed alone decides
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
@given(st.data())
def test_any_valid_call_equals_reference(data):
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    shape, dtype = data.draw(shapes()), data.draw(st.sampled_from(DTYPES))
    x = make(shape, dtype)
    operands = [laid_out(t, data.draw(layouts())) for t in x[:4]]
    options = {
        "attn_mask": data.draw(masks(shape)),
        "is_causal": data.draw(st.booleans()),
        "diagonal_offset": data.draw(OFFSETS),
        "window_size": (data.draw(EDGES), data.draw(EDGES)),
        "scale": data.draw(st.sampled_from([None, 0.0, 1.0, -0.5])),
    }
    grad_logsumexp = x.grad_logsumexp if data.draw(st.booleans()) else None
    check(*operands, grad_logsumexp, **options)
