"""The tables of docs/performance*.md come from the benchmarks, never from a keyboard."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
from bench_docs import BLOCK, DOCUMENTS, fill  # noqa: E402
from doc_tables import TABLES, Results  # noqa: E402


def row(case="B1 H8/8 S128 D64", dtype="fp32", passes="forward", ratio=2.0, kind="training"):
    return {
        "kind": kind,
        "case": case,
        "dtype": dtype,
        "pass": passes,
        "ratio": ratio,
        "fma_share": 0.5,
        "read_share": 0.25,
        "peak_bytes": {"fused": 2**20, "sdpa": 2**21},
    }


def scaling_row(length, ratio, absent):
    names = {"fma_share": {"fused": 0.75}, "ratio": ratio, "absent": absent, "threads": 1}
    return {"case": f"S{length}", "length": length, "dtype": "fp32", "pass": "forward", **names}


@pytest.fixture
def results():
    about = {
        **dict.fromkeys(("cpu", "system", "torch", "torch_isa", "commit", "date"), "some"),
        **{"cores": 2, "threads": 2, "isa": "avx512", "command": "python bench.py"},
    }
    main = [row(), row(dtype="bf16", ratio=0.9), row("B1 Sq1", kind="decode", ratio=3.0)]
    scaling = [
        scaling_row(128, {"sdpa": 1.5}, {}),
        scaling_row(256, {}, {"sdpa": "time: would take 9 s of 1 s"}),
    ]
    calls = ("b1_h8_s2048_d64", "b1_h16_2_s2048_d128_causal", "b1_h32_8_decode4096_d128")
    kernels = [
        {"name": f"avx2/fp32/{call}/{half}", "share": 0.875, "scratch_KiB": 300.0}
        for call in calls
        for half in ("forward", "backward")
    ]
    kernels += [
        {**entry, "name": entry["name"].replace("avx2/fp32", "avx512_bf16/bf16"), "share": 0.625}
        for entry in kernels
    ]
    kernels += [
        {"name": "avx2/kernel/scores/d64", "share": 0.9375},
        {"name": "avx512_bf16/kernel/scores/d64", "share": 0.75},
        {"name": "avx2/kernel/exp", "elements/s": 4e9},
        {"name": "bf16_dot/fp32_fma", "GFLOP/s": 160.0},
    ]
    return Results(
        main={"machine": about, "rows": main},
        avx2={"machine": {**about, "isa": "avx2"}, "rows": [row(ratio=0.5)]},
        scaling={"machine": about, "rows": scaling},
        kernels={"command": "bench_kernels", "benchmarks": kernels},
    )


def test_every_table_of_the_pages_is_known_and_closed():
    shown = set()
    for page in {page for pages in DOCUMENTS.values() for page in pages}:
        text = page.read_text()
        named = re.findall(r"<!-- table: (.*?) -->", text)
        assert [match[1] for match in BLOCK.findall(text)] == named
        shown |= set(named)
    assert shown == set(TABLES)


def test_a_machine_whose_widest_isa_is_avx2_has_no_second_run(results):
    results.avx2 = None
    assert TABLES["losing"](results).splitlines()[0] == "1 of 4 rows:"
    assert "AVX2 is the widest" in TABLES["ratios-avx2"](results)
    assert TABLES["machine"](results).count("python bench.py") == 2


def test_filling_replaces_what_stood_there_and_nothing_else(results):
    page = "before\n<!-- table: ratios -->\nold\n<!-- end -->\nafter\n"
    filled = fill(page, results)
    assert filled.startswith("before\n<!-- table: ratios -->\n|")
    assert filled.endswith("<!-- end -->\nafter\n")
    assert "old" not in filled
    assert "| B1 H8/8 S128 D64 | 2.00x (0.50) | 0.90x (0.50) |" in filled
    assert "| B1 Sq1 | 3.00x (0.25) |  |" in filled
    assert fill(filled, results) == filled


def test_a_table_that_nobody_knows_is_an_error(results):
    with pytest.raises(KeyError, match="no table is named 'ratio'"):
        fill("<!-- table: ratio -->\n<!-- end -->\n", results)


def test_rows_that_lose_are_listed_worst_first(results):
    lines = TABLES["losing"](results).splitlines()
    assert lines[0] == "2 of 5 rows:"
    assert [line.split("|")[3].strip() for line in lines[4:]] == ["0.50x", "0.90x"]


def test_an_absent_contestant_is_named_with_its_reason(results):
    assert "| sdpa | 1 of 2 | 1.50x to 1.50x | time (from S256) |" in TABLES["others"](results)


def test_an_isa_is_shown_in_the_dtype_that_it_has_kernels_for(results):
    assert "| b1_h8_s2048_d64 | 0.88 | 0.88 | 0.62 | 0.62 |" in TABLES["one-thread"](results)
    pieces = TABLES["pieces"](results)
    assert "| scores/d64 | 0.94 of peak | 0.75 of peak |" in pieces
    assert "| exp | 4.0 / ns |  |" in pieces


@pytest.mark.parametrize("name", TABLES)
def test_every_table_can_be_made(name, results):
    assert TABLES[name](results)
