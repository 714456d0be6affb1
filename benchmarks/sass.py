"""Disassembles CUDA machine code, with NVIDIA's tools from a toolkit or from their packages."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_RESOURCES = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:\d+")


def find_tool(name: str) -> str | None:
    """nvcc, cuobjdump or nvdisasm; the latter two are packages as well, nvidia-cuda-<name>."""
    homes = [os.environ.get(variable, "") for variable in ("CUDA_HOME", "CUDA_PATH")]
    folders = [f"{home}/bin" for home in (*homes, "/usr/local/cuda") if home]
    for root in dict.fromkeys((*site.getsitepackages(), *sys.path)):
        folders += [f"{root}/nvidia/cu13/bin", f"{root}/nvidia/cu12/bin"]
    return shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *folders]))


@dataclass
class Kernel:
    architecture: str  # sm_80
    name: str  # mangled
    registers: int
    stack: int  # bytes; what does not fit into registers lies there
    lines: list[str]  # instructions and labels ("name:"), in order


def disassemble(cubin: Path) -> dict[str, list[str]]:
    """Instructions, and labels with a colon, of each function of a cubin."""
    listing = _run(find_tool("nvdisasm"), "-c", cubin)
    functions = {}
    for part in re.split(r"^\.text\.", listing, flags=re.MULTILINE)[1:]:
        name, body = part.split(":", 1)
        found = re.findall(r"^(\.L_x_\d+):|/\*[0-9a-f]+\*/\s+(.*?)\s*;", body, flags=re.MULTILINE)
        functions[name] = [f"{label}:" if label else text for label, text in found]
    return functions


def kernels(library: Path) -> list[Kernel]:
    """All kernels of a library, for every architecture that it has machine code for."""
    cuobjdump = find_tool("cuobjdump")
    result = []
    with tempfile.TemporaryDirectory() as folder:
        _run(cuobjdump, "-xelf", "all", library.resolve(), cwd=folder)
        for cubin in sorted(Path(folder).glob("*.cubin")):
            architecture = re.search(r"sm_\d+\w*", cubin.name)[0]
            functions = disassemble(cubin)
            report = _run(cuobjdump, "-res-usage", cubin)
            for name, registers, stack in _RESOURCES.findall(report):
                result.append(
                    Kernel(architecture, name, int(registers), int(stack), functions[name])
                )
    return result


def _run(*command, cwd=None) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, check=True, capture_output=True, text=True
    )
    return done.stdout + done.stderr
