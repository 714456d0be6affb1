#!/usr/bin/env python3
"""Measures what the page of this machine's ISA shows, in less than 12 minutes of a quiet machine,
and fills its tables, so that no figure there is typed by hand: docs/performance.md and README.md on
a machine with AVX2, docs/performance-avx512*.md on one with AVX-512. A table stands between
`<!-- table: NAME -->` and `<!-- end -->`; the names are those of doc_tables.py. `make bench-docs`
builds what is needed.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from doc_tables import TABLES, Results

import fused_attention

ROOT = Path(__file__).resolve().parent.parent
# By the fastest ISA of the machine.
DOCUMENTS = {
    "avx2": (ROOT / "docs/performance.md", ROOT / "README.md"),
    "avx512": (ROOT / "docs/performance-avx512.md",),
    "avx512_bf16": (ROOT / "docs/performance-avx512-bf16.md",),
}
# Hold everybody to AVX2: us, torch's own kernels, oneDNN and MKL.
AVX2 = {
    "FUSED_ATTENTION_ISA": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
# Of it all; what overlaps the end (a slow call, the plots) fits into the twelfth.
MINUTES = 11
# In fp32 what all ISAs have alike, in bf16 what only one of them has.
KERNELS = "^(avx2|avx512)/(kernel|fp32)/|^avx512_bf16/(kernel|bf16)/|^bf16_dot"
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "out/docs")
    *narrower, isa = fused_attention.cpu.isas()
    parser.add_argument("--documents", type=Path, nargs="+", default=DOCUMENTS.get(isa))
    parser.add_argument("--fill-only", action="store_true", help="with what --out already holds")
    parser.add_argument("--brief", action="store_true", help="a minute of everything, to try it")
    build = Path(os.environ.get("BUILD", ROOT / "build/release"))
    parser.add_argument("--kernels", type=Path, default=build / "benchmarks/bench_kernels")
    options = parser.parse_args(arguments)
    if options.documents is None:
        parser.error(f"no page shows {isa}: name --documents")
    start = time.monotonic()
    if not options.fill_only:
        # Relative to the root where it can be: the commands are shown in the documents.
        out = Path(os.path.relpath(options.out.resolve(), ROOT))
        measure(out, options.kernels.resolve(), options.brief, hold_to_avx2="avx2" in narrower)
    results = load(options.out)
    for document in options.documents:
        document.write_text(fill(document.read_text(), results))
    print(f"{time.monotonic() - start:.0f} s; filled {', '.join(map(str, options.documents))}")
    return 0


def measure(out: Path, kernels: Path, brief: bool, hold_to_avx2: bool) -> None:
    """The scaling study comes last and fills the time that is left: it can be bounded."""
    deadline = time.monotonic() + 60 * MINUTES
    (ROOT / out).mkdir(parents=True, exist_ok=True)
    held = out / "avx2/bench_attention.json"
    (ROOT / held).unlink(missing_ok=True)  # of another machine, maybe
    attention = [sys.executable, "benchmarks/bench_attention.py", "--no-flex"]
    training = ["--filter", "training", "--dtype", "fp32", "bf16"]
    scaling = [sys.executable, "benchmarks/bench_scaling.py", "--out", out, "--minutes"]
    if brief:
        attention += ["--quick", "--seconds", "0.02"]
        run([*attention, "--filter", "tiny", "--out", out])
        if hold_to_avx2:
            run([*attention, "--filter", "S128", "--out", held.parent], AVX2)
        measure_kernels(kernels, "0", out / "bench_kernels.json")
        run([*scaling, "0.2", "--lengths", "64", "128", "--without", "flex"])
        return
    run([*attention, "--seconds", "0.5", "--out", out])
    if hold_to_avx2:
        run([*attention, "--seconds", "0.4", *training, "--out", held.parent], AVX2)
    measure_kernels(kernels, "0.1", out / "bench_kernels.json")
    run([*scaling, f"{max(1.0, (deadline - time.monotonic()) / 60):.1f}"])


def measure_kernels(kernels: Path, seconds: str, log: Path) -> None:
    pieces = [kernels, f"--benchmark_filter={KERNELS}"]
    pieces.append(f"--benchmark_min_time={seconds}")
    run([*pieces, f"--benchmark_out={log}", "--benchmark_out_format=json"])
    content = json.loads((ROOT / log).read_text())
    content["command"] = shlex.join([kernels.name, *pieces[1:]])
    (ROOT / log).write_text(json.dumps(content, indent=1) + "\n")


def run(command: list, extra: dict[str, str] | None = None) -> None:
    command = list(map(str, command))
    print("\n$", shlex.join(command), flush=True)
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, **(extra or {})})


def load(out: Path) -> Results:
    def read(name: str) -> dict:
        return json.loads((out / f"{name}.json").read_text())

    avx2 = None
    if (out / "avx2/bench_attention.json").exists():
        avx2 = read("avx2/bench_attention")
        # The command line does not show the environment.
        held = " ".join(f"{name}={value}" for name, value in AVX2.items())
        avx2["machine"]["command"] = f"{held} {avx2['machine']['command']}"
    return Results(read("bench_attention"), avx2, read("bench_scaling"), read("bench_kernels"))


def fill(text: str, results: Results) -> str:
    """Replaces every table by the one of its name; a name that is not known is an error."""
    for name in re.findall(r"<!-- table: (.*?) -->", text):
        if name not in TABLES:
            raise KeyError(f"no table is named {name!r}; there are {', '.join(TABLES)}")
    return BLOCK.sub(lambda m: f"{m[1]}{TABLES[m[2]](results)}\n{m[3]}", text)


if __name__ == "__main__":
    sys.exit(main())
