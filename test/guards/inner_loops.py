"""The innermost loops of an object file, from its disassembly."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Instruction(NamedTuple):
    address: int
    name: str
    operands: str

    @property
    def jumps_to(self) -> int | None:
        match = re.match(r"[0-9a-f]+\b", self.operands)
        return int(match[0], 16) if self.name.startswith("j") and match else None

    @property
    def is_multiply_add(self) -> bool:
        return re.match(r"vf(n?m)(add|sub)|vdpbf16ps", self.name) is not None

    @property
    def moves_vector_on_stack(self) -> bool:
        """Reads or writes the spill of a whole register (words of one are loop counters)."""
        on_stack = re.search(r"\(%r[sb]p\b", self.operands)
        return bool(on_stack and re.search(r"%[yz]mm", self.operands))


class Loop(NamedTuple):
    function: str
    body: list[Instruction]

    @property
    def multiply_adds(self) -> int:
        return sum(i.is_multiply_add for i in self.body)

    @property
    def spills(self) -> list[Instruction]:
        return [i for i in self.body if i.moves_vector_on_stack]


def functions(path: Path) -> Iterator[tuple[str, list[Instruction]]]:
    command = ["objdump", "-d", "--no-show-raw-insn", "-C", str(path)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for part in re.split(r"\n(?=[0-9a-f]+ <)", listing):
        head = re.match(r"[0-9a-f]+ <(.*)>:", part)
        lines = re.findall(r"^\s*([0-9a-f]+):\s+(\S+)[ \t]*(.*)$", part, re.MULTILINE)
        if head:
            yield head[1], [Instruction(int(at, 16), name, rest) for at, name, rest in lines]


def innermost_loops(path: Path) -> Iterator[Loop]:
    """Backward jumps that enclose no other one, with what lies between target and jump."""
    for name, code in functions(path):
        place = {instruction.address: i for i, instruction in enumerate(code)}
        ranges = []
        for end, instruction in enumerate(code):
            begin = place.get(instruction.jumps_to)
            if begin is not None and begin <= end:
                ranges.append((begin, end))
        for begin, end in ranges:
            inside = [r for r in ranges if r != (begin, end) and begin <= r[0] and r[1] <= end]
            if not inside:
                yield Loop(name, code[begin : end + 1])
