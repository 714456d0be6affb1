"""Commands of the build, as a user would type them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", ROOT / "build/release"))


def run(*command, env=None, cwd=None, check=True):
    """The finished process; stdout holds what it wrote to both channels."""
    result = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert not check or result.returncode == 0, result.stdout
    return result


def run_python(code, *, path=None, check=True):
    """Runs code in a fresh interpreter, with a folder put before the installed packages."""
    env = {"PYTHONPATH": str(path)} if path else {}
    return run(sys.executable, "-c", code, env=env, cwd="/", check=check)


def configure(source, build, *arguments, env=None, check=True):
    """Configures with this interpreter's torch, unless the arguments name another."""
    found = any(str(a).startswith(("-DPython_EXECUTABLE", "-DTORCH_ROOT")) for a in arguments)
    python = [] if found else [f"-DPython_EXECUTABLE={sys.executable}"]
    return run("cmake", "-S", source, "-B", build, *python, *arguments, env=env, check=check)
