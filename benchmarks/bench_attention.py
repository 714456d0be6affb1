#!/usr/bin/env python3
"""Times fused_attention against torch's SDPA, its math form and compiled FlexAttention, in turn in
one process, and sets the times against the ceilings of the machine measured in the same rounds.

ratio: time of SDPA / time of fused_attention, the median over rounds; above 1 we are faster.
GFLOP/s: only the visible (query, key) pairs count, so a causal call has about half the work of a
full one; backward is 2.5 times forward. FMA share: of the fp32 rate that all threads reach on
multiply-adds alone. Read share: bytes of K and V per second, of a plain read of the same bytes.
MiB: the most that a call holds at one time on one thread, results included. Prints every row, also
those that lose, and adds a line to history.jsonl beside its other files. Exits with 1 if a result
differs from SDPA's by more than rounding.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median

import torch
from bench_cases import CASES, Case, Inputs, flops, make_inputs
from common import Stopwatch, interleave, machine, paired_ratio
from contestants import FLEX, FUSED, MATH, SDPA, contestant
from history import append
from memory import peak_bytes
from plot import draw
from probes import Probes
from rich.console import Console
from rich.progress import Progress
from table import markdown, print_rows

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Relative to the largest entry. SDPA rounds P to bf16 before PV, and sums gradients in bf16 steps.
TOLERANCE = {"fp32": 1e-4, "bf16": 4e-2, "fp16": 5e-3}
# fp16 differs from bf16 in how rows are converted: these kinds show it.
KINDS_FP16 = ("training", "decode")
FMA, READ = "fma_gflops", "read_gbps"
# About what one probe takes.
PROBE_SECONDS = 0.007


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    console = Console()
    console.width = max(console.width, 120)
    about = machine()
    console.print(
        f"[bold]{about['cpu']}[/bold], {about['cores']} cores, {about['threads']} threads; "
        f"fused_attention on {about['isa']}, torch {about['torch']} on {about['torch_isa']}",
        highlight=False,
    )
    probes = Probes(str(about["isa"]), torch.get_num_threads())
    rows = []
    plan = [
        (case, dtype, backward)
        for case in CASES
        if (case.quick or not options.quick) and options.filter in f"{case.kind} {case.name}"
        for dtype in options.dtype
        for backward in ((False,) if case.kind == "decode" else (False, True))
        if not (options.quick and case.kind != "training" and dtype != "fp32")
        if dtype != "fp16" or case.kind in KINDS_FP16 or options.filter
    ]
    if not plan:
        console.print(f"no case matches {options.filter!r}")
        return 2
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(plan))
        for case, dtype, backward in plan:
            what = f"{case.name} {dtype} {'forward + backward' if backward else 'forward'}"
            progress.update(task, description=what)
            rows.append(measure_row(case, dtype, backward, options, probes))
            progress.advance(task)
    print_rows(rows, console)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / "bench_attention"
    content = {"machine": about, "seed": options.seed, "quick": options.quick, "rows": rows}
    stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    stem.with_suffix(".md").write_text(markdown(rows, about))
    append(options.out / "history.jsonl", stem.name, about, rows)
    draw(rows, about, stem.with_suffix(".png"))
    console.print(f"Plot: {stem}.png, numbers: {stem}.json, for a README: {stem}.md")
    wrong = [row for row in rows if not row["difference"] <= TOLERANCE[row["dtype"]]]
    for row in wrong:
        console.print(
            f"[bold red]{row['case']} {row['dtype']} {row['pass']}: differs from SDPA by "
            f"{row['difference']:.1e} of the largest entry[/]"
        )
    return 1 if wrong else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases, less than 90 seconds")
    parser.add_argument("--filter", default="", help='only cases with this text, as "decode"')
    parser.add_argument(
        "--dtype", nargs="+", choices=DTYPES, help="default: all, quick fp32 and bf16"
    )
    parser.add_argument("--seconds", type=float, help="per row (default: 4, quick 0.8)")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own choice)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of plot and numbers")
    parser.add_argument(
        "--no-flex", action="store_true", help="leave FlexAttention out (quick too)"
    )
    options = parser.parse_args(arguments)
    if options.dtype is None:
        options.dtype = ["fp32", "bf16"] if options.quick else list(DTYPES)
    if options.seconds is None:
        options.seconds = 0.8 if options.quick else 4.0
    return options


def measure_row(
    case: Case, dtype: str, backward: bool, options: argparse.Namespace, probes: Probes
) -> dict[str, object]:
    inputs = make_inputs(case, DTYPES[dtype], options.seed)
    calls = {name: contestant(name, case, inputs, backward) for name in (FUSED, SDPA)}
    difference = relative_difference(calls[FUSED](), calls[SDPA]())
    peaks = {name: peak_bytes(call) for name, call in calls.items()}
    main = {name: Stopwatch(call) for name, call in calls.items()}
    extra, absent = others(case, inputs, backward, options)
    round_seconds = sum(watch.cost for watch in main.values()) + 2 * PROBE_SECONDS
    # Slow rows have few rounds: more probes in each keep one disturbed probe from counting.
    probes_a_round = max(1, min(7, int(0.1 * round_seconds / PROBE_SECONDS)))
    samples = interleave(
        {name: watch.measure for name, watch in main.items()}
        | {
            FMA: lambda: median(probes.fma_gflops(dtype) for _ in range(probes_a_round)),
            READ: lambda: median(probes.read_gbps(inputs.kv) for _ in range(probes_a_round)),
        },
        {name: watch.measure for name, watch in extra.items()},
        round_seconds=round_seconds,
        extra_seconds=sum(watch.cost for watch in extra.values()),
        budget=options.seconds,
    )
    medians = {name: median(values) for name, values in samples.items()}
    seconds = medians[FUSED]
    gflops = flops(case, backward) / seconds * 1e-9
    gbps = inputs.kv.numel() * inputs.kv.element_size() / seconds * 1e-9
    return {
        "kind": case.kind,
        "case": case.name,
        "dtype": dtype,
        "pass": "forward+backward" if backward else "forward",
        "ratio": paired_ratio(samples[SDPA], samples[FUSED]),
        "ratio_math": medians[MATH] / seconds if MATH in medians else None,
        "ratio_flex": medians[FLEX] / seconds if FLEX in medians else None,
        "seconds": {name: medians[name] for name in (FUSED, SDPA, *extra)},
        "absent": absent,
        "rounds": len(samples[FUSED]),
        "gflops": gflops,
        "fma_gflops": medians[FMA],
        "fma_share": gflops / medians[FMA],
        "kv_gbps": gbps,
        "read_gbps": medians[READ],
        "read_share": gbps / medians[READ],
        "peak_bytes": peaks,
        "difference": difference,
    }


def others(
    case: Case, inputs: Inputs, backward: bool, options: argparse.Namespace
) -> tuple[dict[str, Stopwatch], dict[str, str]]:
    """Returns the other contestants that can do the case, and why the rest cannot."""
    watches, absent = {}, {}
    for name in (MATH, FLEX):
        if name == FLEX and (options.quick or options.no_flex):
            absent[name] = "not asked for"
            continue
        try:
            watches[name] = Stopwatch(contestant(name, case, inputs, backward))
        # Whatever a compiler raises: the row goes on without this contestant, and says why.
        except Exception as error:
            absent[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return watches, absent


def relative_difference(ours: object, theirs: object) -> float:
    """Returns the largest difference of the results, relative to the largest entry of each."""
    ours, theirs = (
        [x.detach().double() for x in (result if isinstance(result, tuple) else (result,))]
        for result in (ours, theirs)
    )
    return max(
        float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs, strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
