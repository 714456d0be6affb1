"""benchmarks/bench_attention.py runs as its user runs it: as a script, in its own process."""

import json
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
    assert result["machine"]["isa"] in result["machine"]["isas"]
    assert (tmp_path / "bench_attention.png").read_bytes().startswith(b"\x89PNG")


def test_bench_attention_says_that_no_case_matches(tmp_path: Path) -> None:
    done = run(tmp_path, "--filter", "nothing has this name")
    assert done.returncode == 2
    assert "no case matches" in done.stdout
