"""Interleaved timing, and the description of the machine."""

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from history import provenance

import fused_attention

# One measurement repeats a short call until it lasts this long. Much shorter, and it would tell
# what the contestant before has left in the caches; in a model the inputs have just been written.
_SHORTEST_SECONDS = 1e-2


class Stopwatch:
    """Times one call; the first, untimed call warms up and tells how often to repeat it."""

    def __init__(self, call: Callable[[], object]):
        self.call = call
        call()
        self.repeats = 1
        self.estimate = self.measure()
        self.repeats = max(1, min(1000, int(_SHORTEST_SECONDS / self.estimate) + 1))

    def measure(self) -> float:
        """Returns seconds per call."""
        start = time.perf_counter()
        for _ in range(self.repeats):
            self.call()
        return (time.perf_counter() - start) / self.repeats

    @property
    def cost(self) -> float:
        """The seconds that a measurement takes."""
        return self.repeats * self.estimate


def interleave(
    main: dict[str, Callable[[], float]],
    extra: dict[str, Callable[[], float]],
    round_seconds: float,
    extra_seconds: float,
    budget: float,
) -> dict[str, list[float]]:
    """Measures in rounds: every round has one measurement of each of `main`, in rotating order, so
    that whatever slows the machine down meets all alike. `extra` joins as often as half the budget
    allows. At least 3 rounds."""
    rounds = max(3, min(200, int(budget / max(round_seconds, 1e-9))))
    extra_rounds = max(3, min(rounds, int(0.5 * budget / max(extra_seconds, 1e-9))))
    stride = max(1, rounds // extra_rounds)
    samples: dict[str, list[float]] = {name: [] for name in (*main, *extra)}
    names = list(main)
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            samples[name].append(main[name]())
        if turn % stride == 0:
            for name, measure in extra.items():
                samples[name].append(measure())
    return samples


def paired_ratio(slower: list[float], faster: list[float]) -> float:
    """Returns the median over the rounds of the ratio within a round."""
    return median(a / b for a, b in zip(slower, faster, strict=True))


def machine() -> dict[str, object]:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "isa": fused_attention.cpu.active_isa(),
        "isas": list(fused_attention.cpu.isas()),
        "torch": torch.__version__,
        "torch_isa": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        **provenance(),
    }


def _cpu_model() -> str:
    """Returns model name, family and model numbers: virtual machines often hide the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    fields: dict[str, str] = {}
    for line in lines:
        key, _, text = line.partition(":")
        fields.setdefault(key.strip(), text.strip())
    name = fields.get("model name", platform.processor() or "unknown")
    if "cpu family" in fields:
        name += f" (family {fields['cpu family']}, model {fields.get('model', '?')})"
    return name
