"""The wide products of the CPU kernels keep their sums in registers, on every ISA, run or not."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from inner_loops import innermost_loops

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", ROOT / "build/release"))

# Multiply-adds of two steps of the wide register tile (csrc/cpu/kernels/tuning.h).
WIDE_TILE = {"avx2": 2 * 4 * 3, "avx512": 2 * 8 * 2, "avx512_bf16": 2 * 8 * 2}

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 instruction sets"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump (binutils)"),
]


@pytest.mark.parametrize("name", WIDE_TILE)
def test_wide_products_have_no_spill_in_their_loops(name):
    objects = list((BUILD / f"CMakeFiles/fused_attention_isa_{name}.dir").rglob("*.o"))
    if not objects:
        pytest.skip(f"no objects of {name} in {BUILD}: run `make build`, or set BUILD")
    loops = [loop for path in objects for loop in innermost_loops(path)]
    products = [loop for loop in loops if loop.multiply_adds == WIDE_TILE[name]]
    assert {loop.function: loop.spills for loop in products if loop.spills} == {}
    for kernel in ("forward_item", "backward_item"):
        lengths = [len(loop.body) for loop in products if kernel in loop.function]
        # Beside its multiply-adds a step loads the rows and broadcasts the factors, and no more.
        assert lengths
        assert min(lengths) < 1.8 * WIDE_TILE[name]


@pytest.mark.parametrize(("accumulators", "spills"), [(8, False), (24, True)])
def test_spill_is_found(tmp_path, accumulators, spills):
    source, compiled = tmp_path / "code.cpp", tmp_path / "code.o"
    source.write_text(f"""
        typedef float V __attribute__((vector_size(32)));
        void product(const float* a, const V* b, V* c, int n) {{
          V sum[{accumulators}] = {{}};
          for (int k = 0; k < n; ++k) {{
            #pragma GCC unroll 32
            for (int m = 0; m < {accumulators}; ++m)
              sum[m] += (a[k * {accumulators} + m] - V{{}}) * b[k];
          }}
          for (int m = 0; m < {accumulators}; ++m) c[m] = sum[m];
        }}
    """)
    compiler = os.environ.get("CXX", "c++")
    flags = ["-O3", "-mavx2", "-mfma", "-fno-signed-zeros"]
    subprocess.run([compiler, *flags, "-c", source, "-o", compiled], check=True)
    loops = [loop for loop in innermost_loops(compiled) if loop.multiply_adds >= accumulators]
    assert loops
    assert any(loop.spills for loop in loops) == spills
