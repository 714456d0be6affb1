"""Real text as bytes: the Python standard library's own sources, or a file of the user's."""

import re
import sysconfig
from pathlib import Path

import torch

_HELD_OUT = 0.02


def load_bytes(path: Path | None, limit: int = 16 << 20) -> torch.Tensor:
    """Returns the text as a uint8 tensor of at most `limit` bytes."""
    raw = _standard_library(limit) if path is None else path.read_bytes()[:limit]
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0).byte()


def _standard_library(limit: int) -> bytes:
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings"}
    text = bytearray()
    for file in sorted(root.rglob("*.py")):
        if skipped.isdisjoint(file.relative_to(root).parts):
            text += file.read_bytes() + b"\n"
        if len(text) >= limit:
            break
    return bytes(text[:limit])


class Batches:
    """Endless random windows of the training part; the tail of the text is held out."""

    def __init__(self, text: torch.Tensor, batch: int, context: int, seed: int):
        held_out = max(int(len(text) * _HELD_OUT), context + 1)
        self.train, self.held_out = text[:-held_out], text[-held_out:]
        if len(self.train) <= context:
            raise ValueError(
                f"the text has {len(text)} bytes; a context of {context} needs more than "
                f"{2 * context + 1}"
            )
        self.batch, self.context = batch, context
        self.generator = torch.Generator().manual_seed(seed)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns inputs and targets, each (batch, context) int64."""
        starts = torch.randint(
            len(self.train) - self.context, (self.batch,), generator=self.generator
        )
        windows = torch.stack([self.train[s : s + self.context + 1] for s in starts.tolist()])
        return windows[:, :-1].long(), windows[:, 1:].long()

    def prompt(self, length: int) -> torch.Tensor:
        """Returns `length` held-out bytes (1, length), where possible from the first line that
        starts with a letter."""
        text = bytes(self.held_out.tolist())
        found = re.search(rb"(?<=\n)[A-Za-z]", text[:-length])
        start = found.start() if found else 0
        return self.held_out[start : start + length].long().unsqueeze(0)
