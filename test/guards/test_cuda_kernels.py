"""What the compiler made of the CUDA kernels, and that the report on it would notice faults."""

import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", ROOT / "build/release"))
sys.path.append(str(ROOT / "benchmarks"))
import cuda_model  # noqa: E402
import cuda_report  # noqa: E402
import sass_loop  # noqa: E402


@pytest.fixture(scope="module")
def kernels():
    if reason := cuda_report.obstacle(BUILD):
        pytest.skip(reason)
    return cuda_report.load(BUILD)


def test_no_kernel_spills_registers(kernels):
    assert cuda_report.spills(kernels) == []


def test_registers_are_as_recorded(kernels):
    record = json.loads(cuda_report.RECORD.read_text())
    if record["compiler"] != cuda_report.compiler_name():
        pytest.skip(f"the record is of {record['compiler']}")
    assert cuda_report.more_registers(kernels, record["registers"]) == []


def test_tile_loops_take_no_more_instructions_than_they_must(kernels):
    assert cuda_report.more_than_minimum(kernels) == []


def test_every_kernel_is_there_for_both_half_types_and_fits_on_an_sm(kernels):
    keys = {kernel.key for kernel in kernels}
    halves = {dtype: {k[5:] for k in keys if k.startswith(dtype)} for dtype in ("bf16", "fp16")}
    assert halves["bf16"]
    assert halves["bf16"] == halves["fp16"]
    for kernel in kernels:
        for gpu in cuda_model.GPUS:
            if gpu.architecture == kernel.architecture:
                fitting = cuda_model.blocks_per_sm(kernel.info, kernel.registers, gpu)
                assert fitting >= 1, f"{kernel.key} does not fit on {gpu.name}"


def kernel(registers=100, stack=0, turn=()):
    info = cuda_model.KernelInfo(
        "fused_attention::cuda::ForwardConfig<fused_attention::cuda::BFloat16, Tile, false>",
        threads=128,
        shared_bytes=50 << 10,
        blocks_per_sm=2,
        rows=128,
        keys=64,
        stages=2,
        dim_qk=64,
        dim_v=64,
    )
    return cuda_report.Compiled(info, "sm_80", registers, stack, list(turn))


def test_report_names_a_kernel_that_spills_or_grows_or_is_new():
    grown, spilling = kernel(registers=109), kernel(stack=8)
    assert "spills 8 bytes on sm_80" in cuda_report.spills([kernel(), spilling])[0]
    record = {grown.key: {"sm_80": 100}}
    assert "109 registers, 100 before" in cuda_report.more_registers([grown], record)[0]
    assert cuda_report.more_registers([kernel(registers=108)], record) == []
    assert "has no record" in cuda_report.more_registers([grown], {})[0]


def test_report_names_an_instruction_that_is_too_many():
    turn = ["HMMA.16816.F32.BF16 R4, R8, R2, R4"] * 129 + ["LDSM.16.M88.4 R4, [R0]"] * 40
    turn += ["LDGSTS.E.BYPASS.128 [R5], [R2.64]"] * 8 + ["MUFU.EX2 R1, R1"] * 68
    turn += ["BAR.SYNC 0x0", "@!PT LDS RZ, [RZ]"]
    faults = cuda_report.more_than_minimum([kernel(turn=turn)])
    assert len(faults) == 1
    assert "HMMA 129 times for a tile, 128 are enough" in faults[0]


def test_turn_of_the_tile_loop_leaves_out_rare_paths_and_other_loops():
    lines = """
        MOV R1, c[0x0][0x28]
        .L_x_0:
        HMMA.16816.F32 R4, R8, R2, R4
        @P0 BRA `(.L_x_0)
        .L_x_1:
        BAR.SYNC 0x0
        LDSM.16.M88.4 R4, [R0]
        HMMA.16816.F32 R4, R8, R2, R4
        HMMA.16816.F32 R4, R8, R2, R4
        @!P1 BRA `(.L_x_2)
        STS [R1], R2
        STS [R1], R3
        .L_x_2:
        MUFU.EX2 R1, R1
        @P2 BRA `(.L_x_3)
        BRA `(.L_x_1)
        .L_x_3:
        EXIT
    """
    turn = sass_loop.turn_of_tile_loop([line.strip() for line in lines.split("\n") if line.strip()])
    assert {name: sass_loop.count(turn, name) for name in ("HMMA", "LDSM", "STS", "MUFU.EX2")} == {
        "HMMA": 2,
        "LDSM": 1,
        "STS": 0,
        "MUFU.EX2": 1,
    }
    assert len(turn) == 8
