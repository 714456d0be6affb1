"""What the compiled CUDA kernels need, as the disassembler's resource report has it."""

import os
import re
import shutil
import site
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", ROOT / "build/release"))
KERNEL = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


def find_cuobjdump():
    """From the toolkit, or from the package nvidia-cuda-cuobjdump."""
    folders = [f"{root}/nvidia/cu13/bin" for root in site.getsitepackages()]
    path = os.pathsep.join([os.environ["PATH"], "/usr/local/cuda/bin", *folders])
    return shutil.which("cuobjdump", path=path)


@pytest.fixture(scope="module")
def kernels():
    """(name, registers, bytes of stack) of every kernel of the library and architecture."""
    library = BUILD / "libfused_attention.so"
    if not library.exists():
        pytest.skip(f"no library in {BUILD}: run `make build`, or set BUILD to the build folder")
    tool = find_cuobjdump()
    if tool is None:
        pytest.skip("needs cuobjdump (pip install nvidia-cuda-cuobjdump)")
    if b"attention_kernel" not in library.read_bytes():
        pytest.skip("this build has no CUDA kernels")
    report = subprocess.run([tool, "-res-usage", library], check=True, capture_output=True)
    found = KERNEL.findall(report.stdout.decode() + report.stderr.decode())
    assert found, "the report does not look as it used to"
    return [(name, int(registers), int(stack)) for name, registers, stack, _, _ in found]


def test_no_kernel_spills_registers(kernels):
    assert [name for name, _, stack in kernels if stack > 0] == []


def test_every_half_precision_kernel_is_there_for_both_types(kernels):
    names = [name for name, _, _ in kernels]
    bfloat16 = [name.replace("8BFloat16", "7Float16") for name in names if "8BFloat16" in name]
    assert bfloat16
    assert sorted(bfloat16) == sorted(name for name in names if "7Float16" in name)
