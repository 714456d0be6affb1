#!/usr/bin/env python3
"""Prints what the compiler made of the CUDA kernels: registers, spills, shared memory, blocks an SM
holds, the instructions of a tile against the fewest that the algorithm needs, and what binds each
kernel on a GPU, on paper. No GPU is needed, but a build with CUDA kernels and benchmarks, and
NVIDIA's disassembler (a toolkit's, or the packages nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm).

With --update it fills the tables of docs/cuda.md and rewrites the record of registers,
benchmarks/cuda_registers.json. Exits with 1 if a kernel spills, needs more registers than recorded
or more instructions than it must, and with 77 if there is nothing to report.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import sass
from bench_docs import BLOCK
from cuda_model import COUNTED, GPUS, KernelInfo, blocks_per_sm, cycles, minimum, mma_share
from doc_tables import markdown_table
from sass_loop import count, turn_of_tile_loop

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path(__file__).resolve().with_name("cuda_registers.json")
DOCUMENT = ROOT / "docs/cuda.md"
MORE_REGISTERS = 8  # ptxas gives them out in eights
SKIPPED = 77


@dataclass
class Compiled:
    """A kernel on one architecture."""

    info: KernelInfo
    architecture: str
    registers: int
    stack: int
    turn: list[str]  # instructions of a tile; none for kernels without tensor cores

    @property
    def key(self) -> str:
        return f"{self.info.dtype} {self.info.label}"

    @property
    def counts(self) -> dict[str, int]:
        return {name: count(self.turn, name) for name in COUNTED}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    build = Path(os.environ.get("BUILD", ROOT / "build/release"))
    parser.add_argument("--build", type=Path, default=build)
    parser.add_argument("--update", action="store_true", help="rewrite the record and the tables")
    options = parser.parse_args(arguments)
    if reason := obstacle(options.build):
        print(f"skipped: {reason}")
        return SKIPPED
    kernels = load(options.build)
    for name, table in TABLES.items():
        print(f"\n{name}\n{table(kernels)}")
    compiler = compiler_name()
    if options.update:
        registers = {
            key: {k.architecture: k.registers for k in group}
            for key, group in by_kernel(kernels).items()
        }
        RECORD.write_text(
            json.dumps({"compiler": compiler, "registers": registers}, indent=1) + "\n"
        )
        DOCUMENT.write_text(
            BLOCK.sub(lambda m: f"{m[1]}{TABLES[m[2]](kernels)}\n{m[3]}", DOCUMENT.read_text())
        )
    faults = spills(kernels) + more_than_minimum(kernels)
    record = json.loads(RECORD.read_text())
    if record["compiler"] == compiler:
        faults += more_registers(kernels, record["registers"])
    else:
        print(f"Registers are not compared: the record is of {record['compiler']}, not {compiler}")
    print(*faults, sep="\n")
    return 1 if faults else 0


def obstacle(build: Path) -> str:
    """Why there is nothing to report; nothing if there is."""
    library = build / "libfused_attention.so"
    if not library.exists():
        return f"no library in {build}: run `make build`, or set BUILD to the build folder"
    if b"attention_kernel" not in library.read_bytes():
        return "this build has no CUDA kernels"
    if not (build / "benchmarks/list_cuda_kernels").exists():
        return f"no list_cuda_kernels in {build}: `make test` builds it, or cmake --preset ci"
    for tool in ("cuobjdump", "nvdisasm"):
        if sass.find_tool(tool) is None:
            return f"needs {tool} (pip install nvidia-cuda-{tool})"
    return ""


def compiler_name() -> str:
    nvcc = sass.find_tool("nvcc")
    if nvcc is None:
        return "another nvcc"
    output = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    return f"nvcc {re.search(r'V([0-9.]+)', output)[1]}"


def load(build: Path) -> list[Compiled]:
    listing = subprocess.run(
        [build / "benchmarks/list_cuda_kernels"], check=True, capture_output=True, text=True
    ).stdout
    infos = [KernelInfo(**json.loads(line)) for line in listing.splitlines()]
    infos_by_name = {info.name: info for info in infos}
    kernels = sass.kernels(build / "libfused_attention.so")
    names = subprocess.run(
        ["c++filt"],
        input="\n".join(kernel.name for kernel in kernels),
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    result = []
    for kernel, name in zip(kernels, names, strict=True):
        config = re.fullmatch(r"void fused_attention::cuda::attention_kernel<(.*?) ?>\(.*", name)[1]
        info = infos_by_name[config]
        has_minimum = info.is_on_tensor_cores and not info.general
        turn = turn_of_tile_loop(kernel.lines) if has_minimum else []
        result.append(Compiled(info, kernel.architecture, kernel.registers, kernel.stack, turn))
    order = {info.name: n for n, info in enumerate(infos)}
    return sorted(result, key=lambda k: (order[k.info.name], k.architecture))


def by_kernel(kernels: list[Compiled]) -> dict[str, list[Compiled]]:
    groups: dict[str, list[Compiled]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.key, []).append(kernel)
    return groups


def spills(kernels: list[Compiled]) -> list[str]:
    return [f"{k.key} spills {k.stack} bytes on {k.architecture}" for k in kernels if k.stack > 0]


def more_registers(kernels: list[Compiled], recorded: dict[str, dict[str, int]]) -> list[str]:
    """Kernels without a record, too: they have to be looked at once."""
    faults = []
    for k in kernels:
        old = recorded.get(k.key, {}).get(k.architecture)
        if old is None:
            faults.append(f"{k.key} on {k.architecture} has no record: --update writes it")
        elif k.registers > old + MORE_REGISTERS:
            faults.append(f"{k.key} on {k.architecture}: {k.registers} registers, {old} before")
    return faults


def more_than_minimum(kernels: list[Compiled]) -> list[str]:
    return [
        f"{k.key} on {k.architecture}: {name} {k.counts[name]} times for a tile, {least} are enough"
        for k in kernels
        if k.turn
        for name, least in minimum(k.info).items()
        if k.counts[name] != least
    ]


def kernel_table(kernels: list[Compiled]) -> str:
    rows = []
    for key, group in by_kernel(kernels).items():
        if key.startswith("fp16"):
            continue
        info = group[0].info
        fitting = [
            blocks_per_sm(info, k.registers, gpu)
            for k in group
            for gpu in GPUS
            if gpu.architecture == k.architecture
        ]
        rows.append(
            (
                key,
                " / ".join(str(k.registers) for k in group),
                " / ".join(str(k.stack) for k in group),
                f"{info.shared_bytes / 1024:.0f}",
                " / ".join(str(n) for n in fitting),
                " / ".join(f"{n * info.warps / GPUS[0].warps:.0%}" for n in fitting),
            )
        )
    header = ("sm_80 / sm_90", "registers", "spilled bytes", "shared KB", "blocks an SM", "warps")
    return markdown_table(header, rows)


def instruction_table(kernels: list[Compiled]) -> str:
    rows = []
    for key, group in by_kernel(kernels).items():
        if not group[0].turn or key.startswith("fp16"):
            continue
        least = minimum(group[0].info)
        cells = []
        for name in COUNTED:
            found = sorted({k.counts[name] for k in group})
            cells.append(" / ".join(map(str, found)) + f" [{least[name]}]")
        rows.append((key, *cells, " / ".join(str(len(k.turn)) for k in group)))
    return markdown_table(("a warp and tile [fewest]", *COUNTED, "all, sm_80 / sm_90"), rows)


def roofline_table(kernels: list[Compiled]) -> str:
    rows = []
    for key, group in by_kernel(kernels).items():
        if not group[0].turn or key.startswith("fp16"):
            continue
        cells = []
        for gpu in GPUS:
            kernel = next(k for k in group if k.architecture == gpu.architecture)
            work = (kernel.info, kernel.counts, len(kernel.turn), gpu)
            parts = cycles(*work)
            binding = max(parts, key=parts.get)
            cells.append(" / ".join(f"{value:.0f}" for value in parts.values()))
            cells.append(f"{binding} ({mma_share(*work):.0%})")
        rows.append((key, *cells))
    header = [""]
    for gpu in GPUS:
        header += [f"{gpu.name}: cycles a tile", "bound by (share of mma peak)"]
    return markdown_table(header, rows)


TABLES = {
    "cuda-kernels": kernel_table,
    "cuda-instructions": instruction_table,
    "cuda-roofline": roofline_table,
}


if __name__ == "__main__":
    sys.exit(main())
