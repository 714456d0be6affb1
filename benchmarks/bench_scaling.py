#!/usr/bin/env python3
"""How attention scales with the sequence length, from S 128 to 16384 on 1 and on all threads:
fused_attention, torch's SDPA and its math form, compiled FlexAttention and attention written out
with torch.bmm, in turn in one process.

--minutes bounds the whole run. Each point gets a part of what is left; a contestant whose call
would not fit into it, or whose scores would not fit into half of the free memory, is left out, and
the file says so with the reason. Writes bench_scaling.json and .png, and a line to history.jsonl.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from bench_cases import Case, flops, make_inputs
from common import machine, paired_ratio
from contestants import BMM, FLEX, FUSED, MATH, SDPA, contestant
from history import append
from memory import available_bytes
from plot_scaling import draw
from probes import Probes
from rich.console import Console
from rich.progress import Progress

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
# (B, Hq, Sq, Sk) scores held at one time, counted in the dtype or, where it is larger, in fp32.
SCORE_COPIES = {MATH: 4, BMM: 3}
# Half of the time is for all points alike, as short rows need many rounds; of the other half,
# longer sequences get more.
WEIGHT_EXPONENT = 0.75
FMA_PROBES = 5


@dataclass(frozen=True)
class Point:
    length: int
    dtype: str
    backward: bool
    threads: int


class Estimates:
    """What a call is expected to take, by the last length at which it was measured, and what comes
    before it: compiling."""

    def __init__(self) -> None:
        self._last: dict[tuple, tuple[int, float]] = {}
        self._setup: dict[str, float] = {}

    def call(self, name: str, point: Point) -> float:
        length, seconds = self._last.get(self._key(name, point), (point.length, 0.0))
        return seconds * (point.length / length) ** 2

    def setup(self, name: str) -> float:
        return self._setup.get(name, 0.0)

    def record(self, name: str, point: Point, first: float, second: float | None) -> None:
        call = first if second is None else second
        self._last[self._key(name, point)] = (point.length, call)
        self._setup[name] = first - call

    @staticmethod
    def _key(name: str, point: Point) -> tuple:
        return (name, point.dtype, point.backward, point.threads)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    about = machine()
    console = Console()
    points = [Point(*p) for p in itertools.product(*plan(options))]
    weights = weigh(points)
    names = [name for name in (FUSED, SDPA, BMM, MATH, FLEX) if name not in options.without]
    estimates, rows = Estimates(), []
    probes = {n: Probes(str(about["isa"]), n) for n in options.threads}
    deadline = time.monotonic() + 60 * options.minutes
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=sum(weights))
        for index, point in enumerate(points):
            what = "forward + backward" if point.backward else "forward"
            text = f"S{point.length} {point.dtype} {what}, threads: {point.threads}"
            progress.update(task, description=text)
            part = weights[index] / sum(weights[index:])
            budget = max(0.0, deadline - time.monotonic()) * part
            rows.append(measure(point, names, budget, options, estimates, probes[point.threads]))
            console.print(summary(text, rows[-1]), highlight=False)
            progress.advance(task, weights[index])
    set_shares(rows)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / "bench_scaling"
    content = {"machine": about, "seed": options.seed, "minutes": options.minutes, "rows": rows}
    stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    draw(rows, about, stem.with_suffix(".png"))
    append(options.out / "history.jsonl", stem.name, about, rows)
    console.print(f"Plot: {stem}.png, numbers: {stem}.json")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="for all of it (default: 10)")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, torch.get_num_threads()])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--without", nargs="+", default=[], choices=(BMM, MATH, FLEX))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of plot and numbers")
    options = parser.parse_args(arguments)
    options.threads = sorted(set(options.threads))
    options.lengths = sorted(set(options.lengths))
    return options


def plan(options: argparse.Namespace) -> tuple:
    """Short sequences first: they say what the long ones will take."""
    return options.lengths, options.dtype, (False, True), options.threads


def weigh(points: list[Point]) -> list[float]:
    """Returns each point's part of the time."""
    by_length = [point.length**WEIGHT_EXPONENT for point in points]
    return [0.5 / len(points) + 0.5 * w / sum(by_length) for w in by_length]


def measure(
    point: Point,
    names: list[str],
    budget: float,
    options: argparse.Namespace,
    estimates: Estimates,
    probes: Probes,
) -> dict[str, object]:
    torch.set_num_threads(point.threads)
    heads, length = options.heads, point.length
    case = Case("scaling", 1, heads, heads, length, length, options.dim, causal=options.causal)
    inputs = make_inputs(case, DTYPES[point.dtype], options.seed)
    deadline = time.monotonic() + budget
    calls: dict[str, Callable[[], object]] = {}
    samples: dict[str, list[float]] = {}
    absent: dict[str, str] = {}
    for index, name in enumerate(names):
        # A first call and one that counts, and something is left for those that follow.
        limit = max(0.0, deadline - time.monotonic()) / (1 + 0.25 * (len(names) - index - 1))
        expected = estimates.setup(name) + 2 * estimates.call(name, point)
        scores = SCORE_COPIES.get(name, 0) * (2 if point.backward else 1) * heads * length**2 * 4
        if expected > limit and name != FUSED:
            absent[name] = f"time: would take {expected:.2g} s of {limit:.2g} s"
        elif scores > available_bytes() / 2:
            absent[name] = f"memory: its scores would take {scores / 2**30:.1f} GiB"
        else:
            try:
                start = time.monotonic()
                calls[name] = contestant(name, case, inputs, point.backward)
                calls[name]()
                first = time.monotonic() - start
                # Where even a second call is too long, the first one counts, unless it compiled.
                second = timed(calls[name]) if name == FLEX or 2 * first < limit else None
                samples[name] = [first if second is None else second]
                estimates.record(name, point, first, second)
                if name == FLEX:  # its compiling is not at the expense of the rounds
                    deadline += estimates.setup(name)
            # Whatever a compiler raises: the row goes on without this contestant, and says why.
            except Exception as error:
                calls.pop(name, None)
                absent[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"

    def peak() -> float:
        return probes.fma_gflops(point.dtype)

    peaks = [peak() for _ in range(FMA_PROBES)]
    take_rounds(calls, samples, deadline, lambda: peaks.append(peak()))
    peaks += [peak() for _ in range(FMA_PROBES)]
    return row(point, case, samples, absent, median(peaks))


def take_rounds(
    calls: dict[str, Callable],
    samples: dict[str, list[float]],
    deadline: float,
    probe: Callable[[], None],
) -> None:
    """Measures in turn, in rotating order, until the time is up; short calls are repeated. Every
    round ends with a probe of the peak."""
    repeats = {name: max(1, int(5e-3 / samples[name][0])) for name in calls}
    for names in rotations(list(calls)):
        cost = sum(repeats[name] * samples[name][-1] for name in names)
        if time.monotonic() + cost > deadline or len(samples[FUSED]) > 50:
            return
        for name in names:
            samples[name].append(timed(calls[name], repeats[name]))
        probe()


def rotations(names: list[str]) -> Iterator[list[str]]:
    while True:
        yield names
        names = names[1:] + names[:1]


def timed(call: Callable[[], object], repeats: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def row(
    point: Point,
    case: Case,
    samples: dict[str, list[float]],
    absent: dict[str, str],
    peak: float,
) -> dict[str, object]:
    # What counts for short calls are the repeated ones, after the single ones that came first.
    kept = {name: values[1:] or values for name, values in samples.items()}
    work = flops(case, point.backward) * 1e-9
    return {
        "case": case.name,
        "length": point.length,
        "dtype": point.dtype,
        "pass": "forward+backward" if point.backward else "forward",
        "threads": point.threads,
        "seconds": {name: median(values) for name, values in kept.items()},
        "rounds": {name: len(values) for name, values in kept.items()},
        "ratio": {
            name: paired_ratio(values, kept[FUSED])
            for name, values in kept.items()
            if name != FUSED
        },
        "absent": absent,
        "fma_gflops": peak,
        "gflops": {name: work / median(values) for name, values in kept.items()},
    }


def set_shares(rows: list[dict]) -> None:
    """Shares of the peak that the whole run measured for the dtype with as many threads: a row of
    few rounds has few probes of its own, and other processes disturb some."""
    for kind in {(row["threads"], row["dtype"]) for row in rows}:
        same = [row for row in rows if (row["threads"], row["dtype"]) == kind]
        peak = median(row["fma_gflops"] for row in same)
        for row in same:
            row["fma_share"] = {name: rate / peak for name, rate in row["gflops"].items()}


def summary(text: str, row: dict) -> str:
    ratios = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in row["ratio"].items())
    reasons = "".join(f"; no {name}: {reason[:70]}" for name, reason in row["absent"].items())
    return f"{text}: {row['gflops'][FUSED]:.0f} GFLOP/s; faster than {ratios}{reasons}"


if __name__ == "__main__":
    sys.exit(main())
