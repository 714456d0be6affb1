"""The operators on emulated CUDA kernels: the host's whole way from a tensor to a launch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", ROOT / "build/release"))
LIBRARY = BUILD / "test/emulator/libfused_attention_emulated.so"
# One type for most, every type for the smallest shape; not what takes seconds.
CHOSEN = "(bfloat16 or empty or beyond or S17) and not (deterministic or 320)"
# What takes other kernels where a block has 99 KB of shared memory.
LITTLE_SHARED = {"FUSED_ATTENTION_EMULATED_SHARED_BYTES": str(99 << 10)}
CHOSEN_LITTLE_SHARED = "bfloat16 and D576"


def run_tests_for_a_gpu(chosen, env):
    if not LIBRARY.exists():
        pytest.skip(f"no emulator with torch in {BUILD}: `make test` builds it, with Boost.Context")
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider"]
    command += ["--emulated-cuda", LIBRARY, "-k", chosen, "test/python/test_cuda.py"]
    env = {**os.environ, **env}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "failed" not in done.stdout
    return int(re.search(r"(\d+) passed", done.stdout)[1])


@pytest.mark.own_mode
def test_the_tests_for_a_gpu_pass_in_the_emulator():
    assert run_tests_for_a_gpu(CHOSEN, {}) > 50


@pytest.mark.own_mode
def test_the_tests_for_a_gpu_pass_in_the_emulator_of_one_with_little_shared_memory():
    assert run_tests_for_a_gpu(CHOSEN_LITTLE_SHARED, LITTLE_SHARED) >= 4
