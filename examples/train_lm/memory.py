"""Peak memory of one model's training steps, measured in a process of its own.

The system's high-water mark of resident memory (VmHWM) sees everything: tensors, and scratch that
an allocator hook would miss. Two models in one process would share it, so each gets a process; what
is resident before the model exists (Python, torch) is subtracted.
"""

import json
import subprocess
import sys
from pathlib import Path

from model import Config


def peak_megabytes(
    names: list[str], config: Config, batch: int, bf16: bool, threads: int
) -> dict[str, float]:
    """Returns the growth of resident memory in MiB by attention, nothing where /proc is absent."""
    if not Path("/proc/self/status").exists():
        return {}
    processes = {}
    for name in names:
        request = json.dumps([name, vars(config), batch, bf16, threads])
        command = [sys.executable, str(Path(__file__).resolve()), request]
        processes[name] = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    results = {}
    for name, process in processes.items():
        output, errors = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"the memory measurement of {name} failed:\n{errors}")
        results[name] = float(output.split()[-1])
    return results


def _status_megabytes(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def _measure(name: str, config: Config, batch: int, bf16: bool, threads: int) -> float:
    import torch
    from attentions import ATTENTIONS
    from trainer import Trainer

    torch.set_num_threads(threads)
    before = _status_megabytes("VmRSS")
    trainer = Trainer(config, ATTENTIONS[name], seed=0, bf16=bf16)
    tokens = torch.randint(256, (batch, config.context))
    for _ in range(3):
        trainer.step(tokens, tokens, progress=0.5)
    return _status_megabytes("VmHWM") - before


if __name__ == "__main__":
    name, config, *rest = json.loads(sys.argv[1])
    print(_measure(name, Config(**config), *rest))
