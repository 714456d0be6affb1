"""Results do not depend on the thread count, bit for bit, forward and backward."""

import pytest
import torch

from cases import DTYPES, Shape, dtype_id, make, run_fused

# Few heads and long rows, so that work has to be split inside a head; odd counts of items.
SHAPES = (
    Shape(1, 1, 1, 333, 333, 64, 64),
    Shape(1, 3, 1, 129, 257, 40, 24),
    Shape(1, 8, 1, 1, 777, 64, 64),
    Shape(3, 2, 2, 65, 33, 16, 16),
    Shape(1, 6, 2, 7, 500, 128, 128),
    Shape(1, 4, 2, 3, 1600, 24, 16),  # keys in chunks, backward too
)


def with_threads(count, call):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return call()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["full", "causal", "window", "mask"])
def test_result_is_bitwise_equal_for_any_thread_count(isa, kind, shape, dtype):
    x = make(shape, dtype)
    options = {
        "full": {},
        "causal": {"is_causal": True, "diagonal_offset": shape.seq_k - shape.seq_q},
        "window": {"window_size": (40, 10)},
        "mask": {"attn_mask": torch.rand(shape.seq_q, shape.seq_k) < 0.5},
    }[kind]
    want = with_threads(1, lambda: run_fused(*x, **options))
    for count in (2, 3, 16):
        got = with_threads(count, lambda: run_fused(*x, **options))
        for name, a, b in zip(want._fields, got, want, strict=True):
            assert torch.equal(a, b), f"{name} differs with {count} threads"


def test_result_is_bitwise_equal_from_run_to_run(isa, threads):
    x = make(Shape(1, 2, 1, 200, 300, 64, 64))
    first = run_fused(*x, is_causal=True)
    for _ in range(5):
        assert all(
            torch.equal(a, b) for a, b in zip(run_fused(*x, is_causal=True), first, strict=True)
        )


def test_operator_leaves_the_thread_count_alone(threads):
    run_fused(*make(Shape(1, 2, 1, 50, 60, 16, 16)))
    assert torch.get_num_threads() == threads


def test_only_one_openmp_runtime_is_in_the_process():
    run_fused(*make(Shape(1, 2, 1, 50, 60, 16, 16)))
    with open("/proc/self/maps") as file:
        libraries = {
            line.split()[-1] for line in file if line.rstrip().endswith(tuple("0123456789o"))
        }
    runtimes = {n for n in libraries if "gomp" in n or "iomp" in n or "libomp" in n}
    assert len(runtimes) == 1, runtimes
