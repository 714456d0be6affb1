"""Runs every check of the project, all of them even if one fails, and sums up.

Called by `make test`, which builds first. Exits with 1 if anything failed.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = os.environ.get("BUILD", str(ROOT / "build/release"))
JOBS = os.environ.get("MAX_JOBS", str(os.cpu_count()))
ASAN = str(Path(BUILD).parent / "asan-operator")

SKIPPED = 77  # how a check says that it could not be made here; it prints why


def tracked(*patterns: str) -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [name for name in listing.stdout.splitlines() if (ROOT / name).exists()]


def checks() -> list[tuple[str, list[list[str]]]]:
    """Name and commands of each check, the quick ones first."""
    ctest = ["ctest", "--output-on-failure", "--progress"]
    pytest = [sys.executable, "-m", "pytest", "-rs", "--durations=10"]
    return [
        ("Python style", [["ruff", "check", "."], ["ruff", "format", "--check", "."]]),
        (
            "C++ style",
            [["clang-format", "--dry-run", "-Werror", *tracked("*.h", "*.cpp", "*.cu", "*.cuh")]],
        ),
        ("C++ tests", [[*ctest, "--test-dir", BUILD, "--parallel", JOBS]]),
        ("Instruction counts", [[sys.executable, "benchmarks/count_instructions.py"]]),
        (
            "C++ tests under AddressSanitizer and UBSan",
            [
                [
                    *("cmake", "--preset", "asan-operator", "-B", ASAN),
                    f"-DPython_EXECUTABLE={sys.executable}",
                ],
                ["cmake", "--build", ASAN, "--parallel", JOBS],
                # Not by CTest, which starts a process for each test of the operator: a start under
                # AddressSanitizer takes longer than most of them.
                [f"{ASAN}/test/cpp/fused_attention_kernel_tests", "--gtest_brief=1"],
                [f"{ASAN}/test/cpp/fused_attention_tests", "--gtest_brief=1"],
                [*ctest, "--test-dir", ASAN, "-R", "^emulator", "--parallel", JOBS],
            ],
        ),
        (
            "Mutants of the CUDA kernels",
            [[sys.executable, "test/mutants", "--suite", "emulator", "--quick", "--jobs", JOBS]],
        ),
        ("Python tests", [[*pytest, *shlex.split(os.environ.get("PYTEST_ARGS", ""))]]),
        (
            "Python tests in torch's deterministic mode",
            [[*pytest, "--deterministic", "test/python"]],
        ),
    ]


def isas_without_a_machine() -> list[str]:
    """ISAs that the library holds but this CPU cannot run, so that nothing tested them."""
    code = (
        "import fused_attention.cpu as cpu, fused_attention._build_info as info\n"
        "print(*[isa for isa in info.isas if isa not in cpu.isas()])"
    )
    listing = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return listing.stdout.split()


def outcome(commands: list[list[str]]) -> str:
    """Runs them up to the first that does not succeed."""
    for command in commands:
        code = subprocess.run(command, cwd=ROOT).returncode
        if code != 0:
            return "skipped" if code == SKIPPED else "FAILED"
    return "passed"


def has_gpu() -> bool:
    code = (
        "import torch, fused_attention._build_info as info\n"
        "print(int(info.cuda and torch.cuda.is_available()))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return answer.stdout.strip() == "1"


def gpu_tests(root: Path = ROOT) -> int | None:
    """How many tests need a GPU. None if they cannot be collected; pytest's reasons are printed."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "gpu", "test/python"]
    listing = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if listing.returncode != 0:  # 5, too: a project without GPU tests has lost them
        print(listing.stdout, listing.stderr, sep="\n")
        return None
    return sum("::" in line for line in listing.stdout.splitlines())


def main() -> int:
    # Many tests have more threads than there are cores, whose waiting would keep the others from
    # working: it took longer than the work itself.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    results = []
    for name, commands in checks():
        print(f"\n== {name}", flush=True)
        start = time.monotonic()
        results.append((name, outcome(commands), time.monotonic() - start))

    print("\n== Summary (what was skipped, and why, stands above under each check)")
    for name, result, seconds in results:
        print(f"{result:7} {seconds:6.1f} s  {name}")
    for isa in isas_without_a_machine():
        print(f"skipped           {isa} kernels: this CPU does not have the instructions")
    failed = any(result == "FAILED" for _, result, _ in results)
    if not has_gpu():
        count = gpu_tests()
        if count is None:
            failed = True
            print("FAILED            collecting the GPU tests")
        else:
            print(f"skipped           {count} GPU tests: no GPU, or a build without CUDA kernels")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
