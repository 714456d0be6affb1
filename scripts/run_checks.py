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
        ("C++ style", [["clang-format", "--dry-run", "-Werror", *tracked("*.h", "*.cpp")]]),
        ("C++ tests", [[*ctest, "--test-dir", BUILD, "--parallel", JOBS]]),
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
                ["ctest", "--test-dir", ASAN, "-R", "^emulator", "--output-on-failure"],
            ],
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


def main() -> int:
    results = []
    for name, commands in checks():
        print(f"\n== {name}", flush=True)
        start = time.monotonic()
        passed = all(subprocess.run(command, cwd=ROOT).returncode == 0 for command in commands)
        results.append((name, passed, time.monotonic() - start))

    print("\n== Summary (what was skipped, and why, stands above under each check)")
    for name, passed, seconds in results:
        print(f"{'passed' if passed else 'FAILED'}  {seconds:6.1f} s  {name}")
    for isa in isas_without_a_machine():
        print(f"skipped            {isa} kernels: this CPU does not have the instructions")
    return 0 if all(passed for _, passed, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
