"""benchmarks/gpu_check.sh, as far as it runs without a GPU."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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


# A machine's programs, as far as the script asks them. Its Python has no package but torch.
PYTHON = """#!/bin/sh
case "$*" in
  "-c import torch") exit {torch} ;;
  *is_available* | *get_device_capability*) echo 90 ;;
  benchmarks/*) echo "$*" "$PYTHONPATH" >> "{log}" ;;
  *) exec "{python}" -S "$@" ;;
esac
"""
CMAKE = """#!/bin/sh
echo cmake "$@" >> "{log}"
if [ "$1" = --install ]; then echo built > "$4/of_the_check"; fi
"""
PYTEST = """
import importlib.util, sys
if __name__ == "__main__":
    found = importlib.util.find_spec("fused_attention").submodule_search_locations[0]
    print("tests", found, *sys.argv[1:])
"""


@pytest.fixture
def machine(tmp_path):
    """Runs the script on a machine of stand-ins: gives what it left, and what cmake was told."""

    def run(*arguments, torch=True):
        log = tmp_path / "log"
        text = {"torch": int(not torch), "log": log, "python": sys.executable}
        programs = {"python": PYTHON.format(**text), "cmake": CMAKE.format(**text)}
        (tmp_path / "bin").mkdir(exist_ok=True)
        for name in ("python", "cmake", "ninja", "nvcc", "c++"):
            program = tmp_path / "bin" / name
            program.write_text(programs.get(name, "#!/bin/sh\n"))
            program.chmod(0o755)
        env = {"PATH": os.environ["PATH"], "PYTHON": str(tmp_path / "bin/python")}
        env |= {"OUT": str(tmp_path / "out"), "BUILD": str(tmp_path / "build")}
        command = ["sh", SCRIPTS / "gpu_check.sh", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        return done, log.read_text().splitlines() if log.exists() else []

    return run


def test_script_names_what_is_missing(machine, tmp_path):
    for arguments, options, message in (
        ([], {"torch": False}, "gpu_check: needs torch\n"),
        ([], {}, "gpu_check: needs pytest. On a machine with a network run\n"),
        (["--wheels", tmp_path], {}, f"gpu_check: no wheels can be read in {tmp_path}\n"),
        (["--wheels"], {}, "gpu_check: --wheels needs a folder\n"),
        (["--without"], {}, "gpu_check: there is no option --without\n"),
    ):
        done, log = machine(*arguments, **options)
        assert (done.returncode, log) == (2, [])
        assert message in done.stderr


def test_script_tests_a_package_of_its_own_with_pytest_from_wheels(machine, tmp_path):
    with zipfile.ZipFile(tmp_path / "pytest-9-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pytest.py", PYTEST)
    installed = sorted((ROOT / "python/fused_attention").rglob("*"))
    done, log = machine("--wheels", tmp_path)
    assert done.returncode == 0, done.stderr
    package = tmp_path / "build/package/fused_attention"
    (tests,) = (line for line in done.stdout.splitlines() if line.startswith("tests "))
    assert tests.startswith(f"tests {package} ")
    assert tests.endswith(" test/python/test_cuda.py")
    assert (package / "of_the_check").exists()
    assert (package / "ops.py").exists()
    assert sorted((ROOT / "python/fused_attention").rglob("*")) == installed
    configure, compile_, *install, compare, _ = log
    assert "-DUSE_CUDA=1" in configure
    assert "-DCMAKE_CUDA_ARCHITECTURES=90-real" in configure
    assert "--target fused_attention_library" in compile_
    assert [line.split()[4] for line in install] == [str(package)] * 2
    assert compare.startswith("benchmarks/bench_gpu.py --device cuda ")
    assert f" {package.parent}:" in compare


def test_what_runs_on_a_gpu_needs_no_package_but_torch_and_pytest(tmp_path):
    for module in ("expecttest", "hypothesis", "matplotlib", "numpy", "transformers"):
        (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError({module!r})\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    collect = ["-m", "pytest", "--collect-only", "-q", "-m", "gpu", "test/python/test_cuda.py"]
    for arguments in (collect, [SCRIPTS / "bench_gpu.py", "--help"]):
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
