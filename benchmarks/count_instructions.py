#!/usr/bin/env python3
"""Counts the instructions of reference calls under callgrind, and compares them with the record.

A count is exact where a time is noise: this gate notices a kernel that got slower by a tenth on any
machine. Counts go with a compiler: with another one than the record's there is nothing to compare.
After a change that is meant, `make counts` rewrites the record, benchmarks/instruction_counts.json.
Exits with 1 if a count left the tolerance, either way, and with 77 if nothing could be compared.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path(__file__).resolve().with_name("instruction_counts.json")
TOLERANCE = 0.10
SKIPPED = 77  # the exit code that test drivers know


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help="rewrite the record")
    parser.add_argument("--record", type=Path, default=RECORD)
    build = Path(os.environ.get("BUILD", ROOT / "build/release"))
    parser.add_argument("--program", type=Path, default=build / "benchmarks/count_kernels")
    options = parser.parse_args(arguments)
    if shutil.which("valgrind") is None:
        return skip("valgrind is not there (Debian and Ubuntu: apt-get install valgrind)")
    if not options.program.exists():
        print(f"{options.program} is missing: make test builds it, or cmake --preset ci")
        return 1
    listing = subprocess.run([options.program], check=True, capture_output=True, text=True)
    build_name, *names = listing.stdout.splitlines()
    record = json.loads(options.record.read_text()) if options.record.exists() else None
    if record is None and not options.update:
        print(f"{options.record} is missing: make counts writes it")
        return 1
    if not options.update and record["build"] != build_name:
        return skip(f"the record is of {record['build']}, this build of {build_name}")
    if not runs_avx2():
        return skip("this CPU has no AVX2")
    counts = {name: count(options.program, name) for name in names}
    lines, passed = compare(counts, record["instructions"] if record else {})
    print("\n".join(lines))
    if options.update:
        content = {"build": build_name, "isa": "avx2", "instructions": counts}
        options.record.write_text(json.dumps(content, indent=2) + "\n")
        print(f"recorded in {options.record}")
        return 0
    if not passed:
        print("If this is meant, say why in the commit and rewrite the record: make counts")
    return 0 if passed else 1


def compare(counts: dict[str, int], recorded: dict[str, int]) -> tuple[list[str], bool]:
    """Returns a line per call, and whether all are within the tolerance. Fewer instructions than
    recorded fail as well: the record would hide the next regression."""
    lines, passed = [], True
    for name in dict.fromkeys((*counts, *recorded)):
        new, old = counts.get(name), recorded.get(name)
        if new is None or old is None:
            verdict = "is not recorded" if old is None else "is recorded, but no longer counted"
            passed = False
        else:
            change = new / old - 1
            within = abs(change) <= TOLERANCE
            verdict = f"{change:+.1%} {'ok' if within else f'FAILED: beyond {TOLERANCE:.0%}'}"
            passed = passed and within
        number = "" if new is None else f"{new / 1e6:.2f} M instructions  "
        lines.append(f"{name:42} {number}{verdict}")
    return lines, passed


def count(program: Path, name: str) -> int:
    """Returns the instructions executed inside the call of the kernels, its threads being one."""
    within = f"fused_attention::cpu::{name.split()[0]}(*"
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += [f"--toggle-collect={within}", str(program), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or collected is None or int(collected[1]) == 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return int(collected[1])


def runs_avx2() -> bool:
    try:
        return " avx2 " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def skip(reason: str) -> int:
    print(f"skipped: {reason}")
    return SKIPPED


if __name__ == "__main__":
    sys.exit(main())
