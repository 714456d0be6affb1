"""Finds the tile loop in a kernel's machine code, and counts what a turn of it takes."""

from __future__ import annotations

import heapq
import re

# What every turn of the loop does at least once; blocks without any of these may be skipped.
WORK = ("HMMA", "LDGSTS", "MUFU.EX2", "BAR")

_BRANCH = re.compile(r"(@!?U?P\d+ +)?(BRA\S*) .*?`\((\.L_x_\d+)\)")
_END = re.compile(r"(EXIT|RET|BRX)\b")  # without a predicate


def opcode(instruction: str) -> str:
    return re.sub(r"^@!?U?PT?\d* +", "", instruction).split(" ")[0]


def count(instructions: list[str], name: str) -> int:
    """How many have this opcode, whatever its modifiers: MUFU.EX2, but LDS is not LDSM."""
    # ptxas puts loads that never run before LDGSTS: "@!PT LDS RZ, [RZ]".
    return sum(
        f"{opcode(i)}.".startswith(f"{name}.") for i in instructions if not i.startswith("@!PT")
    )


def basic_blocks(lines: list[str]) -> tuple[list[list[str]], list[list[int]]]:
    """The blocks and, for each, its successors."""
    blocks: list[list[str]] = [[]]
    block_of_label: dict[str, int] = {}
    for line in lines:
        if line.endswith(":"):
            if blocks[-1]:
                blocks.append([])
            block_of_label[line[:-1]] = len(blocks) - 1
            continue
        blocks[-1].append(line)
        if _BRANCH.match(line) or _END.search(line):
            blocks.append([])
    successors = []
    for n, block in enumerate(blocks):
        last = block[-1] if block else ""
        branch = _BRANCH.match(last)
        falls_through = not _END.match(last)
        targets = []
        if branch:
            targets.append(block_of_label[branch[3]])
            falls_through = bool(branch[1]) or branch[2] != "BRA"  # BRA.DIV and .U are conditional
        if falls_through and n + 1 < len(blocks):
            targets.append(n + 1)
        successors.append(targets)
    return blocks, successors


def loops(successors: list[list[int]]) -> list[set[int]]:
    """The strongly connected components that a path can stay in (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    found = []
    for root in range(len(successors)):
        if root in index:
            continue
        work = [(root, iter(successors[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            node, rest = work[-1]
            for target in rest:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(successors[target])))
                    break
                if target in stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = set(stack[stack.index(node) :])
                    del stack[stack.index(node) :]
                    if len(component) > 1 or node in successors[node]:
                        found.append(component)
    return found


def shortest_path(start: int, end: int, inside: set[int], blocks, successors) -> list[int]:
    """Blocks after `start` up to and including `end`, with the fewest instructions."""
    queue = [(0, start, [])]
    seen = set()
    while queue:
        cost, node, path = heapq.heappop(queue)
        if node == end and path:
            return path
        if (node, bool(path)) in seen:
            continue
        seen.add((node, bool(path)))
        for target in successors[node]:
            if target in inside:
                heapq.heappush(queue, (cost + len(blocks[target]), target, [*path, target]))
    raise ValueError("the loop cannot be walked through")


def turn_of_tile_loop(lines: list[str]) -> list[str]:
    """The instructions of one turn of the loop with the most matrix products, by the shortest way
    that does all of the loop's work: without masks and other rare paths."""
    blocks, successors = basic_blocks(lines)
    products = [count(block, "HMMA") for block in blocks]
    inside = max(loops(successors), key=lambda loop: sum(products[n] for n in loop))
    stops = sorted(n for n in inside if any(count(blocks[n], name) for name in WORK))
    turn: list[str] = []
    for start, end in zip(stops, [*stops[1:], stops[0]], strict=True):
        for n in shortest_path(start, end, inside, blocks, successors):
            turn += blocks[n]
    return turn
