"""What a run leaves behind: where and how it was made, and one line for it in the history."""

import datetime
import json
import shlex
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_KEPT = (
    "case",
    "length",
    "threads",
    "dtype",
    "pass",
    "ratio",
    "seconds",
    "fma_share",
    "read_share",
)


def provenance() -> dict[str, str]:
    """Commit ("+" where files differ from it), UTC time and command line."""
    script = Path(sys.argv[0]).resolve()
    name = script.relative_to(_ROOT) if script.is_relative_to(_ROOT) else script.name
    return {
        "commit": _git("rev-parse", "--short", "HEAD")
        + ("+" if _git("status", "-s", "-uno") else ""),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["python", str(name), *sys.argv[1:]]),
    }


def append(path: Path, benchmark: str, about: dict, rows: list[dict]) -> None:
    """Adds a line with the medians of the run's rows."""
    line = {
        "benchmark": benchmark,
        **about,
        "rows": [{key: row[key] for key in _KEPT if key in row} for row in rows],
    }
    with path.open("a") as history:
        history.write(json.dumps(line) + "\n")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()
