"""No instruction of a newer CPU outside the kernels that are chosen for it."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from isa_leak import external_symbols, leaks

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", ROOT / "build/release"))
ISAS = ("generic", "avx2", "avx512", "avx512_bf16")

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 instruction sets"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump (binutils)"),
]


@pytest.fixture(scope="module")
def library():
    path = BUILD / "libfused_attention.so"
    if not path.exists():
        pytest.skip(f"no library in {BUILD}: run `make build`, or set BUILD to the build folder")
    return path


def compile_shared(tmp_path, code, *flags):
    source, shared = tmp_path / "code.cpp", tmp_path / "code.so"
    source.write_text(code)
    command = [os.environ.get("CXX", "c++"), "-O2", "-shared", "-fPIC", *flags]
    subprocess.run([*command, source, "-o", shared], check=True)
    return shared


def test_library_uses_wide_registers_in_the_isa_namespaces_only(library):
    found, seen = leaks(library)
    assert found == set()
    assert all(seen.values()), f"the kernels were not found where they should be: {seen}"


@pytest.mark.parametrize("name", ISAS)
def test_isa_object_defines_only_its_table_accessor(library, name):
    objects = list((BUILD / f"CMakeFiles/fused_attention_isa_{name}.dir").rglob("*.o"))
    assert objects
    accessor = f"_ZN15fused_attention3cpu{len(name)}{name}12kernel_tableEv"
    assert external_symbols(objects) == {accessor}


def test_leak_check_finds_a_planted_leak(tmp_path):
    planted = compile_shared(
        tmp_path,
        """
        namespace fused_attention::cpu::avx2 {
        void fine(float* x) { for (int i = 0; i < 64; ++i) x[i] *= 2; }
        }
        template <class T> void shared_by_all(T* x) { for (int i = 0; i < 64; ++i) x[i] *= 3; }
        template void shared_by_all(float*);
        """,
        "-mavx2",
        "-O3",
    )
    found, seen = leaks(planted)
    assert found == {"_Z13shared_by_allIfEvPT_"}
    assert seen["avx2"] > 0
    assert "_Z13shared_by_allIfEvPT_" in external_symbols([planted])


def test_leak_check_judges_a_lambda_by_the_function_it_stands_in(tmp_path):
    planted = compile_shared(
        tmp_path,
        """
        #define BODY { \\
          auto scale = [&](int n) __attribute__((noinline)) { \\
            for (int i = 0; i < n; ++i) x[i] *= 2; \\
          }; \\
          scale(64); scale(32); \\
        }
        namespace fused_attention::cpu::avx2 {
        struct Tag;
        void ours(float* x) BODY
        }
        template <class T> void foreign(float* x) BODY
        template void foreign<fused_attention::cpu::avx2::Tag>(float*);
        """,
        "-mavx2",
        "-O3",
    )
    found, seen = leaks(planted)
    assert seen["avx2"] > 0
    assert found
    assert all("foreign" in function for function in found)


def test_leak_check_finds_zmm_registers_in_avx2_code(tmp_path):
    planted = compile_shared(
        tmp_path,
        """
        namespace fused_attention::cpu::avx2 {
        void wide(float* x) { for (int i = 0; i < 64; ++i) x[i] *= 2; }
        }
        """,
        "-mavx512f",
        "-mprefer-vector-width=512",
        "-O3",
    )
    assert leaks(planted)[0] == {"_ZN15fused_attention3cpu4avx24wideEPf"}
