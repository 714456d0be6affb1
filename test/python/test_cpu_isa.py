"""Choosing the instruction set: names, environment, errors."""

import os
import subprocess
import sys

import pytest

import fused_attention
from cases import Shape, make, run_fused

pytestmark = pytest.mark.own_mode  # mostly other processes


def cpu_info(field):
    with open("/proc/cpuinfo") as file:
        lines = (line for line in file if line.startswith(field))
        return next(lines, ":").split(":")[1].split()


# Where pairs of bf16 take longer than the fp32 they stand for, avx512_bf16 is not the fastest.
PAIRS_PAY = cpu_info("vendor_id") == ["AuthenticAMD"]
WIDEST = ["avx512", "avx512_bf16"] if PAIRS_PAY else ["avx512_bf16", "avx512"]
ORDER = ["generic", "avx2", *WIDEST]


def child(code, **environment):
    clean = {
        k: v
        for k, v in os.environ.items()
        if k not in ("FUSED_ATTENTION_ISA", "ATEN_CPU_CAPABILITY")
    }
    return subprocess.run(
        [sys.executable, "-c", f"import fused_attention\n{code}"],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


SHOW = "print(fused_attention.cpu.active_isa())"


def test_names_go_from_slowest_to_fastest_and_start_with_generic():
    names = fused_attention.cpu.isas()
    assert names[0] == "generic"
    assert names == [n for n in ORDER if n in names]


def test_every_isa_of_the_machine_is_offered():
    flags = set(cpu_info("flags"))
    names = fused_attention.cpu.isas()
    assert ("avx2" in names) == ({"avx2", "fma", "f16c"} <= flags)
    needed = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
    assert ("avx512" in names) == (needed <= flags)
    assert ("avx512_bf16" in names) == (needed | {"avx512_bf16"} <= flags)


def test_set_isa_takes_effect_and_returns_what_was_asked(isa):
    assert fused_attention.cpu.active_isa() == isa
    assert run_fused(*make(Shape(1, 1, 1, 3, 3, 4, 4)).qkv).output.isfinite().all()


@pytest.mark.parametrize("name", ["", "sse9", "AVX2 "])
def test_unknown_isa_is_refused_with_the_names_that_exist(name):
    before = fused_attention.cpu.active_isa()
    with pytest.raises((RuntimeError, ValueError), match="generic"):
        fused_attention.cpu.set_isa(name)
    assert fused_attention.cpu.active_isa() == before


def test_fastest_isa_is_the_default():
    assert child(SHOW).stdout.strip() == fused_attention.cpu.isas()[-1]


@pytest.mark.parametrize("name", fused_attention.cpu.isas())
def test_environment_forces_an_isa(name):
    assert child(SHOW, FUSED_ATTENTION_ISA=name).stdout.strip() == name
    assert (
        child(SHOW, FUSED_ATTENTION_ISA=name, ATEN_CPU_CAPABILITY="default").stdout.strip() == name
    )


def test_environment_that_names_no_isa_is_an_error_on_first_use():
    code = "import torch\nq = torch.ones(1, 1, 1, 1)\nfused_attention.attention(q, q, q)"
    result = child(code, FUSED_ATTENTION_ISA="pentium")
    assert result.returncode == 1, result  # an exception, not a signal
    assert "pentium" in result.stderr
    assert "generic" in result.stderr


@pytest.mark.parametrize("limit", ["default", "avx2", "avx512"])
def test_capability_of_torch_is_an_upper_limit(limit):
    allowed = ORDER[: {"default": 1, "avx2": 2, "avx512": 4}[limit]]
    want = [n for n in fused_attention.cpu.isas() if n in allowed][-1]
    assert child(SHOW, ATEN_CPU_CAPABILITY=limit).stdout.strip() == want
