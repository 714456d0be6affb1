"""What the sources must keep to, so that kernels build in seconds and on every CPU."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TORCH_FREE = ("csrc/core", "csrc/cpu/kernels", "csrc/cuda/arch", "csrc/cuda/kernels")
TORCH_INCLUDE = re.compile(r'#\s*include\s*[<"](torch|ATen|c10|caffe2)/')
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}


def sources_under(folder):
    return [p for p in sorted((ROOT / folder).rglob("*")) if p.suffix in SOURCE_SUFFIXES]


def test_torch_free_folders_include_no_torch_header():
    sources = [path for folder in TORCH_FREE for path in sources_under(folder)]
    assert len(sources) > 5, "the folders are not where this test looks for them"
    guilty = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if TORCH_INCLUDE.search(line)
    ]
    assert guilty == []


def test_sources_include_no_python_header():
    """One wheel for every Python: nothing may need the interpreter's own interface."""
    needs_python = re.compile(
        r'#\s*include\s*[<"](Python\.h|pybind11/|torch/extension\.h|torch/python\.h)'
    )
    sources = sources_under("csrc") + sources_under("include")
    assert len(sources) > 10
    guilty = [p.relative_to(ROOT) for p in sources if needs_python.search(p.read_text())]
    assert guilty == []


def test_x86_intrinsics_are_in_the_kernels_only():
    intrinsics = re.compile(r"#\s*include\s*<(\w*mmintrin|immintrin|x86intrin)\.h>")
    guilty = [
        p.relative_to(ROOT)
        for p in sources_under("csrc") + sources_under("include")
        if intrinsics.search(p.read_text()) and (ROOT / "csrc/cpu/kernels") not in p.parents
    ]
    assert guilty == []


def this_machines_headers(tmp_path):
    """Options for clang to compile for aarch64 with x86-64's C++ headers (two files differ)."""
    (tmp_path / "gnu").mkdir()
    (tmp_path / "bits").mkdir()
    (tmp_path / "gnu/stubs.h").touch()
    (tmp_path / "bits/wordsize.h").write_text("#define __WORDSIZE 64\n")
    search = subprocess.run(
        ["c++", "-E", "-v", "-x", "c++", "/dev/null"], check=True, capture_output=True, text=True
    ).stderr
    folders = re.search(r"#include <...> search starts here:\n(.*)End of search", search, re.DOTALL)
    # The compiler's own folder holds intrinsics and goes with the compiler; clang has one.
    folders = [f for f in folders[1].split() if "/lib/gcc/" not in f]
    return [option for folder in (tmp_path, *folders) for option in ("-isystem", str(folder))]


@pytest.fixture
def aarch64_compiler(tmp_path):
    cross = ["aarch64-linux-gnu-g++"]
    clang = ["clang++", "--target=aarch64-linux-gnu", "-nostdinc++"]
    if shutil.which(clang[0]) and shutil.which("c++"):
        clang += this_machines_headers(tmp_path)
    probe = "#include <cmath>\n#include <cstdint>\n#include <memory>\n#include <string>\n"
    for compiler in (cross, clang):
        if shutil.which(compiler[0]) is None:
            continue
        command = [*compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
        if subprocess.run(command, input=probe, text=True, capture_output=True).returncode == 0:
            return compiler
    return pytest.skip("no compiler for aarch64 (Debian: apt-get install g++-aarch64-linux-gnu)")


@pytest.mark.parametrize("source", ["csrc/cpu/kernels/kernels.cpp", "csrc/cpu/isa.cpp"])
def test_generic_kernels_compile_for_aarch64(source, aarch64_compiler, tmp_path):
    definitions = ["-DFUSED_ATTENTION_ISA_GENERIC", "-DFUSED_ATTENTION_HAS_GENERIC"]
    command = [*aarch64_compiler, "-std=c++20", *definitions, "-I", ROOT / "csrc"]
    command += ["-I", ROOT / "include", "-c", ROOT / source, "-o", tmp_path / "object.o"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
