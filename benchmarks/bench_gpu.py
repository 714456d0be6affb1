#!/usr/bin/env python3
"""Times fused_attention on a GPU against SDPA's flash, cuDNN, memory-efficient and math backends,
in turn in one process, forward alone and forward with backward. Called by gpu_check.sh.

TFLOP/s count visible (query, key) pairs only; backward is 2.5 times forward. The time of a backward
pass is that of both passes less that of forward. Ratio: time of the fastest backend / ours, above 1
we are faster. Exits with 1 if a result differs from a backend's by more than rounding.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from bench_cases import Case, Inputs, flops, make_inputs
from doc_tables import markdown_table
from torch.nn.attention import SDPBackend, sdpa_kernel

import fused_attention

CASES = (
    Case("training", 4, 16, 16, 2048, 2048, 64, causal=True),
    Case("training", 4, 16, 16, 2048, 2048, 64),
    Case("training", 2, 16, 16, 4096, 4096, 128, causal=True),
    Case("training", 2, 16, 16, 4096, 4096, 128),
    Case("training", 1, 16, 16, 16384, 16384, 128, causal=True),
    Case("training", 2, 8, 8, 4096, 4096, 256, causal=True),
    Case("training", 2, 8, 8, 4096, 4096, 256),
    Case("training", 1, 32, 8, 4096, 4096, 128, causal=True),
    Case("training", 2, 16, 2, 4096, 4096, 64, causal=True),
    Case("mask", 2, 16, 16, 2048, 2048, 64, mask="documents"),
    Case("mask", 4, 16, 16, 1024, 1024, 128, mask="padding"),
    Case("odd", 4, 16, 16, 1000, 1000, 64, causal=True),
    Case("odd", 2, 16, 16, 2048, 2048, 96, causal=True),
    Case("decode", 8, 32, 8, 1, 8192, 128),
    Case("decode", 1, 64, 8, 1, 32768, 128),
)
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# Relative to the largest entry: a backend rounds P, and some of them gradients, to the type.
TOLERANCE = {torch.bfloat16: 4e-2, torch.float16: 5e-3}
ROUNDS = 5

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=240, help="stop after this long")
    parser.add_argument("--device", default="cuda", help="cpu, with tiny sizes: to try this script")
    parser.add_argument("--filter", default="", help="cases whose name contains this")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float16"])
    parser.add_argument("--out", type=Path, default=Path("out/gpu"))
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + options.seconds
    plan = [
        (case, name)
        for name in options.dtype
        for case in CASES
        # For fp16 the kernels are the same.
        if name == "bfloat16" or (case.kind, case.d) == ("training", 128)
        if options.filter in case.name
    ]
    rows: list[dict] = []
    failure = ""
    for case, name in plan:
        if time.monotonic() > deadline:
            print(f"out of time before {case.name} {name}")
            continue
        if options.device == "cpu":
            case = replace(case, b=1, sq=min(case.sq, 16), sk=16)
        try:
            rows += measure_case(case, getattr(torch, name), options.device)
        except RuntimeError as error:  # after an illegal access, say, nothing on the GPU works
            failure = f"{case.name} {name}: {error}"
            print(f"FAILED {failure}")
            break
        print(one_line(rows[-1]), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine(options.device), "failure": failure, "rows": rows}
    (options.out / "bench_gpu.json").write_text(json.dumps(content, indent=1) + "\n")
    (options.out / "bench_gpu.md").write_text(table(rows) + "\n")
    differing = [one_line(row) for row in rows if row["differs"]]
    print(*(f"DIFFERS: {line}" for line in differing), sep="\n")
    return 1 if differing or failure or not rows else 0


def machine(device: str) -> dict[str, object]:
    about = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": device}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        about["gpu"] = properties.name
        about["multiprocessors"] = properties.multi_processor_count
        about["capability"] = f"{properties.major}.{properties.minor}"
    return about


def contestants(case: Case, inputs: Inputs) -> dict[str, Attend]:
    mask, is_causal = inputs.mask, case.causal

    def fused(q, k, v):
        return fused_attention.attention(q, k, v, attn_mask=mask, is_causal=is_causal)

    def backend(which: SDPBackend) -> Attend:
        def attend(q, k, v):
            with sdpa_kernel(which):
                return F.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=case.hq != case.hkv
                )

        return attend

    return {"fused": fused, **{name: backend(which) for name, which in BACKENDS.items()}}


def measure_case(case: Case, dtype: torch.dtype, device: str) -> list[dict]:
    """A row for forward, and one for backward unless it is decoding."""
    inputs = make_inputs(case, dtype, seed=2026)
    inputs = Inputs(
        inputs.q.to(device),
        inputs.kv.to(device),
        None if inputs.mask is None else inputs.mask.to(device),
        inputs.grad.to(device),
    )
    rows = []
    forward_times: dict[str, float] = {}
    for backward in (False, True):
        if backward and case.kind == "decode":
            continue
        calls, absent, results = {}, {}, {}
        for name, attend in contestants(case, inputs).items():
            call = timed_call(attend, inputs, backward)
            try:
                # The math backend holds all scores: 2 B Hq Sq Sk bytes several times over.
                if name == "math" and case.b * case.hq * case.sq * case.sk > 2**31:
                    raise MemoryError("would hold all scores")
                results[name] = call()
            except (RuntimeError, MemoryError) as error:
                absent[name] = str(error).splitlines()[0][:200]
                continue
            calls[name] = call
        times = interleaved(calls, device)
        if backward:
            times = {n: max(t - forward_times[n], 1e-9) for n, t in times.items()}
        else:
            forward_times = times
        work = flops(case, True) - flops(case, False) if backward else flops(case, False)
        others = [t for n, t in times.items() if n != "fused"]
        rows.append(
            {
                "kind": case.kind,
                "case": case.name,
                "dtype": str(dtype).removeprefix("torch."),
                "pass": "backward" if backward else "forward",
                "milliseconds": {n: t * 1e3 for n, t in times.items()},
                "tflops": {n: work / t * 1e-12 for n, t in times.items()},
                "ratio": min(others) / times["fused"] if others and "fused" in times else None,
                "absent": absent,
                "differs": differs(results, TOLERANCE[dtype]),
            }
        )
    return rows


def timed_call(attend: Attend, inputs: Inputs, backward: bool) -> Callable[[], tuple]:
    if not backward:

        def forward() -> tuple:
            with torch.no_grad():
                return (attend(inputs.q, inputs.k, inputs.v),)

        return forward
    leaves = tuple(x.detach().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))

    def both() -> tuple:
        output = attend(*leaves)
        return output.detach(), *torch.autograd.grad(output, leaves, inputs.grad)

    return both


def differs(results: dict[str, tuple], tolerance: float) -> list[str]:
    """What of ours is farther from every backend than rounding explains."""
    if "fused" not in results:
        return ["nothing was computed"]
    found = []
    for n, name in enumerate(("output", "grad_query", "grad_key", "grad_value")):
        if n >= len(results["fused"]):
            break
        ours = results["fused"][n].float()
        errors = []
        for other, theirs in results.items():
            if other != "fused":
                want = theirs[n].float()
                errors.append(((ours - want).abs().max() / want.abs().max()).item())
        if errors and not min(errors) <= tolerance:
            found.append(f"{name} by {min(errors):.2g}")
    return found


def interleaved(calls: dict[str, Callable], device: str) -> dict[str, float]:
    """Seconds of a call of each: the median over rounds in which all take a turn."""
    repeats = {}
    for name, call in calls.items():
        estimate = max(seconds_of(call, 1, device), 1e-6)
        repeats[name] = max(1, min(50, int(0.02 / estimate)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            samples[name].append(seconds_of(call, repeats[name], device))
    return {name: median(values) for name, values in samples.items()}


def seconds_of(call: Callable, repeats: int, device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / repeats


def one_line(row: dict) -> str:
    times = ", ".join(f"{n} {t:.3f} ms" for n, t in row["milliseconds"].items())
    return f"{row['case']} {row['dtype']} {row['pass']}: {times} {'; '.join(row['differs'])}"


def table(rows: list[dict]) -> str:
    """TFLOP/s of each, and the ratio to the fastest backend."""
    names = ("fused", *BACKENDS)
    body = [
        (
            f"{row['case']} {row['dtype']} {row['pass']}",
            *(f"{row['tflops'][n]:.1f}" if n in row["tflops"] else "-" for n in names),
            "-" if row["ratio"] is None else f"{row['ratio']:.2f}x",
        )
        for row in rows
    ]
    return markdown_table(("TFLOP/s", *names, "against the fastest"), body)


if __name__ == "__main__":
    sys.exit(main())
