"""Writes gpu_check.json and gpu_check.md from what the parts of gpu_check.sh have left."""

import argparse
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def tests(report: Path) -> dict:
    """Counts, the reasons of skips, and what failed; empty if pytest did not come to an end."""
    if not report.exists():
        return {}
    cases = ElementTree.parse(report).getroot().iter("testcase")
    found = {"passed": 0, "failed": [], "skipped": {}}
    for case in cases:
        fault = case.find("failure")
        if fault is None:
            fault = case.find("error")
        skip = case.find("skipped")
        if fault is not None:
            message = (fault.get("message") or "").splitlines()
            name = f"{case.get('classname')}::{case.get('name')}"
            found["failed"].append({"test": name, "message": message[0] if message else ""})
        elif skip is not None:
            reason = skip.get("message") or ""
            found["skipped"][reason] = found["skipped"].get(reason, 0) + 1
        else:
            found["passed"] += 1
    return found


def text(summary: dict, table: str) -> str:
    result = summary["tests"]
    lines = [f"{key}: {value}" for key, value in summary.get("machine", {}).items()]
    lines.append(
        f"built in {summary['build_seconds']} s, tested in {summary['test_seconds']} s"
        if result
        else "the tests did not come to an end"
    )
    if result:
        lines.append(f"tests: {result['passed']} passed, {len(result['failed'])} failed")
        lines += [f"FAILED {f['test']}: {f['message']}" for f in result["failed"]]
        lines += [f"skipped {count}: {reason}" for reason, count in result["skipped"].items()]
    return "\n".join([*(f"- {line}" for line in lines), "", table])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    for name in ("build-seconds", "test-seconds", "test-status", "bench-status"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    summary = {key: value for key, value in vars(options).items() if key != "out"}
    summary["tests"] = tests(options.out / "tests.xml")
    measured = options.out / "bench_gpu.json"
    table = "The comparison did not come to an end."
    if measured.exists():
        summary |= json.loads(measured.read_text())
        table = (options.out / "bench_gpu.md").read_text()
        if summary["failure"]:
            table = f"FAILED {summary['failure']}\n\n{table}"
    (options.out / "gpu_check.json").write_text(json.dumps(summary, indent=1) + "\n")
    page = text(summary, table)
    (options.out / "gpu_check.md").write_text(page)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
