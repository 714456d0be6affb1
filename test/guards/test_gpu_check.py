"""benchmarks/gpu_check.sh, as far as it runs without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "benchmarks"
sys.path.append(str(SCRIPTS))
import bench_gpu  # noqa: E402
import gpu_summary  # noqa: E402

JUNIT = """<testsuites><testsuite>
<testcase classname="test_cuda" name="test_a"/>
<testcase classname="test_cuda" name="test_b"><failure message="boom&#10;more"/></testcase>
<testcase classname="test_cuda" name="test_c"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def test_comparison_runs_and_summary_holds_tests_and_rows(tmp_path):
    arguments = ["--device", "cpu", "--filter", "H32/8 S4096", "--dtype", "bfloat16"]
    assert bench_gpu.main([*arguments, "--out", str(tmp_path)]) == 0
    (tmp_path / "tests.xml").write_text(JUNIT)
    options = ["--build-seconds=7", "--test-seconds=9", "--test-status=1", "--bench-status=0"]
    command = [sys.executable, SCRIPTS / "gpu_summary.py", "--out", tmp_path, *options]
    subprocess.run(command, check=True, capture_output=True)
    summary = json.loads((tmp_path / "gpu_check.json").read_text())
    assert summary["tests"] == {
        "passed": 1,
        "failed": [{"test": "test_cuda::test_b", "message": "boom"}],
        "skipped": {"no GPU": 1},
    }
    forward, backward = summary["rows"]
    assert (forward["pass"], backward["pass"]) == ("forward", "backward")
    assert set(forward["milliseconds"]) >= {"fused", "math"}
    assert forward["differs"] == backward["differs"] == []
    assert set(forward["milliseconds"]) | set(forward["absent"]) == {"fused", *bench_gpu.BACKENDS}
    page = (tmp_path / "gpu_check.md").read_text()
    assert "- FAILED test_cuda::test_b: boom" in page
    assert "| B1 H32/8 S16 D128 causal bfloat16 forward |" in page


def test_comparison_that_differs_from_every_backend_fails(tmp_path, monkeypatch):
    attention = bench_gpu.fused_attention.attention
    monkeypatch.setattr(
        bench_gpu.fused_attention,
        "attention",
        lambda *args, **kwargs: 1.2 * attention(*args, **kwargs),
    )
    arguments = ["--device", "cpu", "--filter", "Sk8192", "--dtype", "bfloat16"]
    assert bench_gpu.main([*arguments, "--out", str(tmp_path)]) == 1
    (row,) = json.loads((tmp_path / "bench_gpu.json").read_text())["rows"]
    assert row["differs"][0].startswith("output by ")


def test_summary_says_when_a_part_did_not_come_to_its_end(tmp_path):
    assert gpu_summary.tests(tmp_path / "tests.xml") == {}
    summary = {"tests": {}, "build_seconds": 1, "test_seconds": 2}
    assert "the tests did not come to an end" in gpu_summary.text(summary, "")


def test_script_names_what_is_missing(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    env = {**os.environ, "PYTHON": str(python), "OUT": str(tmp_path / "out")}
    done = subprocess.run(["sh", SCRIPTS / "gpu_check.sh"], env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "gpu_check: needs torch, pytest, hypothesis and numpy" in done.stderr
