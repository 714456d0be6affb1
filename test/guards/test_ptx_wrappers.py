"""Each PTX wrapper compiles to what CUTLASS's wrapper, or CUDA's own header, compiles to."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import sass  # noqa: E402

SOURCE = Path(__file__).with_suffix(".cu").with_name("ptx_wrappers.cu")
SIZES = {"##bytes": (4, 8, 16), "": ("",)}
NAMES = [
    f"{name}{size}"
    for name, suffix in re.findall(r"KERNEL\(own_(\w+)(|##bytes)\)", SOURCE.read_text())
    for size in SIZES[suffix]
]


def cutlass_headers():
    package = importlib.util.find_spec("cutlass_library")
    if package is None:
        pytest.skip("needs CUTLASS's headers (pip install --no-deps nvidia-cutlass)")
    return Path(package.origin).parent / "source/include"


@pytest.fixture(scope="module", params=["sm_80", "sm_90"])
def listings(request, tmp_path_factory):
    """Instructions of every kernel of the file, by name."""
    headers = cutlass_headers()
    for tool, package in (("nvcc", ""), ("nvdisasm", " (pip install nvidia-cuda-nvdisasm)")):
        if sass.find_tool(tool) is None:
            pytest.skip(f"needs {tool}{package}")
    cubin = tmp_path_factory.mktemp("cubin") / "wrappers.cubin"
    # Flushing denormals makes exp2f one instruction; it changes nothing else here.
    command = [sass.find_tool("nvcc"), "-std=c++20", "-ftz=true", f"-arch={request.param}"]
    command += ["-cubin", "-I", ROOT / "csrc", "-isystem", headers, SOURCE, "-o", cubin]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return sass.disassemble(cubin)


def without_places(lines):
    """The instructions up to the end, free of what may differ: label names, and CUTLASS's hint to
    L2, which a wrapper need not give."""
    end = next(n for n, line in enumerate(lines) if line == "EXIT")
    instructions = [line for line in lines[: end + 1] if not line.endswith(":")]
    return [re.sub(r"\.LTC128B|\.L_x_\d+", "", line) for line in instructions]


@pytest.mark.parametrize("name", NAMES)
def test_wrapper_compiles_to_the_same_instructions_as_its_counterpart(name, listings):
    assert without_places(listings[f"own_{name}"]) == without_places(listings[f"other_{name}"])


def test_every_wrapper_around_an_instruction_has_a_counterpart():
    """What device_ptx.h writes in assembly; `opaque` is an empty instruction."""
    text = (ROOT / "csrc/cuda/arch/device_ptx.h").read_text()
    functions = re.split(r"FUSED_ATTENTION_DEVICE\s", text)
    wrappers = {
        re.search(r"(\w+)\(", function)[1]
        for function in functions[1:]
        if re.search(r"\basm\b", function)
    } - {"opaque"}
    assert len(wrappers) > 10
    pairs = SOURCE.read_text()
    unchecked = [w for w in wrappers if not re.search(rf"\b{w}[<(]", pairs)]
    assert unchecked == []
