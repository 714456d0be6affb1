"""The benchmarks run as their user runs them: as scripts, each in its own process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_attention.py"

pytestmark = pytest.mark.own_mode  # other processes
pytest.importorskip("rich")
pytest.importorskip("matplotlib")


def run(out: Path, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(BENCHMARK), "--quick", "--seconds", "0.05", "--threads", "1"]
    return subprocess.run(
        [*command, "--out", str(out), *options], capture_output=True, text=True, timeout=300
    )


def test_bench_attention_writes_ratios_and_shares_of_every_row(tmp_path: Path) -> None:
    done = run(tmp_path, "--filter", "B4 H8/8 S128")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "bench_attention.json").read_text())
    rows = {(row["dtype"], row["pass"]): row for row in result["rows"]}
    assert set(rows) == {(d, p) for d in ("fp32", "bf16") for p in ("forward", "forward+backward")}
    for row in rows.values():
        assert row["ratio"] > 0
        assert row["ratio_math"] > 0
        assert 0 < row["fma_share"] < 1.5
        assert row["read_share"] > 0
        assert row["rounds"] >= 3
        # The output and its LSE at least, and no (S, S) scores.
        elements = 4 * 8 * 128 * 64
        assert elements * 2 <= row["peak_bytes"]["fused"] < 64 * elements
    assert result["machine"]["isa"] in result["machine"]["isas"]
    line = json.loads((tmp_path / "history.jsonl").read_text())
    assert line["benchmark"] == "bench_attention"
    assert [row["ratio"] for row in line["rows"]] == [row["ratio"] for row in result["rows"]]
    assert (tmp_path / "bench_attention.png").read_bytes().startswith(b"\x89PNG")


def test_bench_attention_says_that_no_case_matches(tmp_path: Path) -> None:
    done = run(tmp_path, "--filter", "nothing has this name")
    assert done.returncode == 2
    assert "no case matches" in done.stdout


def test_bench_scaling_measures_by_length_and_says_who_is_absent(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK.with_name("bench_scaling.py")), "--minutes", "0.1"]
    command += ["--lengths", "16", "64", "--threads", "1", "--without", "flex", "--heads", "1"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "bench_scaling.json").read_text())["rows"]
    points = {(row["length"], row["dtype"], row["pass"]) for row in rows}
    assert len(points) == len(rows) == 2 * 2 * 2
    for row in rows:
        assert set(row["seconds"]) | set(row["absent"]) == {"fused", "sdpa", "bmm", "math"}
        assert 0 < row["fma_share"]["fused"] < 1.5
    assert (tmp_path / "bench_scaling.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 1


def test_bench_scaling_takes_rounds_after_compiling(tmp_path: Path) -> None:
    # FlexAttention compiles for longer than the 1.5 seconds of a row.
    command = [sys.executable, str(BENCHMARK.with_name("bench_scaling.py")), "--minutes", "0.05"]
    command += ["--lengths", "64", "--threads", "1", "--dtype", "fp32", "--out", str(tmp_path)]
    cold = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=cold)
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads((tmp_path / "bench_scaling.json").read_text())["rows"][0]
    assert set(row["rounds"]) == {"fused", "sdpa", "bmm", "math", "flex"}, row["absent"]
    assert min(row["rounds"].values()) > 1


def test_bench_scaling_leaves_out_what_time_or_memory_forbids(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK.with_name("bench_scaling.py")), "--minutes", "0"]
    command += ["--lengths", "64", "128", "--threads", "1", "--dtype", "fp32"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "bench_scaling.json").read_text())["rows"]
    for row in rows:
        assert "fused" in row["seconds"]
    assert all("time" in row["absent"]["sdpa"] for row in rows if row["length"] == 128)
