"""How much memory a call takes from torch's allocator, beyond what its inputs hold."""

import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

# The profiler's library reports its every start on stderr, and that there is no GPU.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def peak_bytes(call: Callable[[], object]) -> int:
    """Returns the most bytes that were allocated at one time during the call, results included, on
    one thread: the profiler does not see what the pool's other threads allocate."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            call()
    finally:
        torch.set_num_threads(threads)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def available_bytes() -> int:
    """Returns what Linux would give without swapping."""
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable"):
                return 1024 * int(line.split()[1])
    return 1 << 62
