"""The gate on instruction counts lets nothing pass that it should stop."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "count_instructions.py"
sys.path.append(str(SCRIPT.parent))
from count_instructions import SKIPPED, compare  # noqa: E402


def test_a_call_within_a_tenth_of_the_record_passes():
    lines, passed = compare({"forward": 1_090_000}, {"forward": 1_000_000})
    assert passed
    assert "+9.0% ok" in lines[0]


@pytest.mark.parametrize("count", [1_110_000, 890_000])
def test_a_call_beyond_a_tenth_of_the_record_fails_either_way(count):
    lines, passed = compare(
        {"forward": 5, "backward": count}, {"forward": 5, "backward": 1_000_000}
    )
    assert not passed
    assert "FAILED" in lines[1]


def test_a_call_that_only_one_side_knows_fails():
    assert not compare({"forward": 5}, {})[1]
    assert not compare({}, {"forward": 5})[1]


def test_the_record_of_another_compiler_is_skipped_with_a_reason(tmp_path):
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"build": "GCC 1.0 Release", "instructions": {"forward": 1}}))
    program = tmp_path / "count_kernels"
    program.write_text("#!/bin/sh\necho GCC 2.0 Release\necho forward\n")
    program.chmod(0o755)
    valgrind = tmp_path / "valgrind"
    valgrind.write_text("#!/bin/sh\nexit 1\n")
    valgrind.chmod(0o755)
    command = [sys.executable, SCRIPT, "--record", record, "--program", program]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": f"{tmp_path}:/bin"})
    assert done.returncode == SKIPPED
    assert "record is of GCC 1.0 Release, this build of GCC 2.0 Release" in done.stdout
    valgrind.unlink()
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert done.returncode == SKIPPED
    assert "valgrind is not there" in done.stdout
