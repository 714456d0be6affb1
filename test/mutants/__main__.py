"""Tests the tests: puts one fault at a time into a copy of the sources, and asks what notices.

    python test/mutants [--suite kernels|emulator|launcher] [--quick] [--only WORDS] [--part K/N]
                        [--jobs N]

Runs with the Python of the development environment (torch, pytest; cmake and ninja on the PATH).
Each mutant of mutants.py is built without torch and run against the kernels' tests, which takes
seconds; what they let pass is built with torch and run against those of the operator in
test/python. Those of cuda_mutants.py, in the CUDA kernels, are run in the emulator, and those of
cuda_launcher_mutants.py on the stand-in for CUDA's runtime. The first failure ends it. Exits with 1
if a mutant survives, with 2 if one cannot be made, because its text does not stand exactly once in
its file or the result does not build, and with 77 if there is no Boost.Context for the emulator.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cuda_launcher_mutants import LAUNCHER_MUTANTS
from cuda_mutants import CUDA_MUTANTS
from pair_mutants import PAIR_MUTANTS

from mutants import CPU_MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
# What can see more than the kernels' own tests: broadcasting, extreme masks, the reference.
PYTHON_TESTS = (
    "test_forward.py",
    "test_backward.py",
    "test_masks.py",
    "test_strides.py",
    "test_threads.py",
    "test_field_cases_masks.py",
    "test_field_cases_sizes.py",
    "test_field_cases_layout.py",
    "test_field_cases_denormals.py",
)
# fp16 and fp64 run the same bodies as bf16 and fp32.
EMULATOR_FILTER = "*:-*/float16*:*/float64*"
QUICK_FILTER = "*/bfloat16*"
NO_EMULATOR = 77
# Waiting for a turn that never comes is a failure, too.
TIMEOUT = 600


class BrokenError(Exception):
    """A mutant that cannot be judged."""


class Tree:
    """A copy of the sources with its own two builds."""

    def __init__(self, folder: Path, jobs: int):
        self.folder = folder / "tree"
        self.kernels = folder / "kernels"
        self.operator = folder / "operator"
        self.jobs = jobs
        self.emulator_filter = EMULATOR_FILTER
        self.configured: set[Path] = set()
        listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in names.splitlines():
            if (ROOT / name).exists():
                self.restore(name)

    def restore(self, name: str) -> None:
        """Unless it is the same: a file that is written is compiled again."""
        source, copy = ROOT / name, self.folder / name
        if copy.exists() and copy.read_bytes() == source.read_bytes():
            return
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)

    def build(self, build: Path, target: str, *options: str) -> None:
        if build not in self.configured:
            run_or_break(
                *("cmake", "-S", str(self.folder), "-B", str(build), "-G", "Ninja"),
                *("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1"),
                *(f"-DPython_EXECUTABLE={sys.executable}", "-DUSE_CUDA=0", *options),
            )
            self.configured.add(build)
        run_or_break(
            *("cmake", "--build", str(build), "--parallel", str(self.jobs), "--target", target)
        )

    def failing_kernel_test(self) -> str | None:
        return self.failing_test("cpp", "fused_attention_kernel_tests")

    def failing_emulator_test(self) -> str | None:
        return self.failing_test(
            "emulator", "fused_attention_emulator_tests", f"--gtest_filter={self.emulator_filter}"
        )

    def failing_launcher_test(self) -> str | None:
        return self.failing_test("emulator/cuda_runtime", "fused_attention_launcher_tests")

    def failing_test(self, folder: str, target: str, *arguments: str) -> str | None:
        """The first failing test of a program that is built without torch."""
        self.build(
            *(self.kernels, target, "-DFUSED_ATTENTION_WITH_TORCH=OFF"),
            *("-DFUSED_ATTENTION_TESTS=ON", "-DFUSED_ATTENTION_EMULATED_KERNEL_OPTIONS=-O0"),
        )
        status, output = run(
            str(self.kernels / "test" / folder / target), "--gtest_fail_fast", *arguments
        )
        if status == 0:
            return None
        failed = re.search(r"\[  FAILED  \] ([^\s,]+)", output)
        running = re.findall(r"\[ RUN      \] (\S+)", output)
        return failed[1] if failed else f"{running[-1]} (ended with {status})"

    def failing_operator_test(self) -> str | None:
        self.build(self.operator, "fused_attention_library", "-DCMAKE_UNITY_BUILD=ON")
        package = self.folder / "python/fused_attention"
        for component in ("library", "python"):
            run_or_break(
                *("cmake", "--install", str(self.operator), "--prefix", str(package)),
                *("--component", component),
            )
        status, output = run(
            *(sys.executable, "-m", "pytest", "-x", "-v", "-rN", "-p", "no:cacheprovider"),
            *("--seed", "2026"),
            *(f"test/python/{name}" for name in PYTHON_TESTS),
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder / "python")},
        )
        if status == 0:
            return None
        begun = re.findall(
            r"^(\S+\.py::.*?)(?: (FAILED|ERROR).*| PASSED.*|$)", output, re.MULTILINE
        )
        failed = [name for name, how in begun if how]
        return failed[0] if failed else f"{begun[-1][0]} (ended with {status})"

    def caught_by(self, suite: str) -> str | None:
        if suite == "emulator":
            return self.failing_emulator_test()
        if suite == "launcher":
            return self.failing_launcher_test()
        return self.failing_kernel_test() or self.failing_operator_test()


def run(*command: str, **options) -> tuple[int | str, str]:
    """Exit status, or what ended it, and the output."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, errors="replace", **pipes, **options) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            return "a timeout", process.communicate()[0]
    return process.returncode, output


def run_or_break(*command: str) -> None:
    status, output = run(*command)
    if status != 0:
        raise BrokenError(f"{' '.join(command)}\n{output[-3000:]}")


def mutated(mutant: Mutant) -> dict[str, str]:
    """The changed files by name."""
    texts: dict[str, str] = {}
    for file, old, new in mutant.edits:
        text = texts.get(file) or (ROOT / file).read_text()
        if text.count(old) != 1:
            raise BrokenError(f"{mutant.name}: '{old}' stands {text.count(old)} times in {file}")
        texts[file] = text.replace(old, new)
    return texts


def verdict(tree: Tree, mutant: Mutant) -> str | None:
    texts = mutated(mutant)
    try:
        for name, text in texts.items():
            (tree.folder / name).write_text(text)
        return tree.caught_by(mutant.suite)
    finally:
        for name in texts:
            tree.restore(name)


def has_emulator() -> bool:
    probe = ("-x", "c++", "-fsyntax-only", "-include", "boost/context/detail/fcontext.hpp", "-")
    return run(os.environ.get("CXX", "c++"), *probe, stdin=subprocess.DEVNULL)[0] == 0


def isas(tree: Tree) -> list[str]:
    """What this machine runs: the ISAs in the names of the kernels' tests."""
    _, output = run(
        str(tree.kernels / "test/cpp/fused_attention_kernel_tests"), "--gtest_list_tests"
    )
    return re.findall(r"RoundsToNearestEven/(\w+)", output)


def part(text: str) -> tuple[int, int]:
    index, parts = (int(number) for number in text.split("/"))
    if not 1 <= index <= parts:
        raise ValueError
    return index, parts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--suite", choices=("kernels", "emulator", "launcher"), help="these mutants only"
    )
    parser.add_argument("--quick", action="store_true", help="the few that `make test` tries")
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--part", type=part, default=(1, 1), help="K/N: the K-th of N parts")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at a time")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build/mutants")
    arguments = parser.parse_args()
    chosen = [
        m
        for m in (*CPU_MUTANTS, *PAIR_MUTANTS, *CUDA_MUTANTS, *LAUNCHER_MUTANTS)
        if arguments.only in m.name
        and arguments.suite in (None, m.suite)
        and (m.quick or not arguments.quick)
    ]
    index, parts = arguments.part
    chosen = chosen[index - 1 :: parts]
    try:
        for mutant in chosen:
            mutated(mutant)
        tree = Tree(arguments.scratch.resolve(), arguments.jobs)
        if arguments.quick:
            tree.emulator_filter = QUICK_FILTER
        for suite in dict.fromkeys(m.suite for m in chosen):
            if suite != "kernels" and not has_emulator():
                print("skipped: Boost.Context is not installed, so there is no emulator")
                return NO_EMULATOR
            unchanged = tree.caught_by(suite)
            if unchanged:
                raise BrokenError(f"the sources as they are fail {unchanged}")
        supported = isas(tree) if any(m.isa for m in chosen) else []
        survivors = []
        print("mutant | caught by\n--- | ---", flush=True)
        for mutant in chosen:
            if mutant.isa and mutant.isa not in supported:
                print(f"{mutant.name} | skipped: this CPU has no {mutant.isa}", flush=True)
                continue
            test = verdict(tree, mutant)
            print(f"{mutant.name} | {test or 'NOTHING: it survives'}", flush=True)
            if not test:
                survivors.append(mutant.name)
    except BrokenError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(chosen)} mutants, {len(survivors)} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
