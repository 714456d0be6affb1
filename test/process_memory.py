"""Resident memory of this process, by the kernel's count: scratch outside torch's allocator too."""

from __future__ import annotations

import pytest


def _status(field: str) -> int:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) * 1024


def resident() -> int:
    return _status("VmRSS:")


def peak_above(call) -> int:
    """Bytes by which the resident set rose above its level before `call`, at the highest moment."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # resets the high-water mark
    except OSError as error:
        pytest.skip(f"the high-water mark of memory cannot be reset here: {error}")
    before = resident()
    call()
    return _status("VmHWM:") - before
