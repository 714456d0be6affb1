"""The picture of bench_attention.py: one bar a row, the ratio to SDPA on a logarithmic axis."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

_COLOURS = {
    ("fp32", "forward"): "#8ecae6",
    ("fp32", "forward+backward"): "#1d6fa5",
    ("bf16", "forward"): "#f6bd60",
    ("bf16", "forward+backward"): "#d1602d",
    ("fp16", "forward"): "#b7d7a8",
    ("fp16", "forward+backward"): "#5b9a4a",
}


def draw(rows: list[dict], machine: dict, path: Path) -> None:
    groups: dict[str, list[dict]] = {}
    for row in rows:
        groups.setdefault(f"{row['kind']}\n{row['case']}", []).append(row)
    height = 0.9 + 0.27 * len(rows) + 0.16 * len(groups)
    figure, axes = plt.subplots(figsize=(10.5, max(height, 3.0)), layout="constrained")
    figure.suptitle(
        f"fused_attention against torch SDPA\n{machine['cpu']}, {machine['threads']} threads, "
        f"{machine['isa']}, torch {machine['torch']}",
        fontsize=11,
    )
    ticks, place = [], 0.0
    for group in groups.values():
        first = place
        for row in group:
            _bar(axes, place, row)
            place += 1
        ticks.append((first + place - 1) / 2)
        place += 0.6
    axes.set_yticks(ticks, groups, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    ratios = [row["ratio"] for row in rows]
    axes.set_xlim(min(0.5, 0.8 * min(ratios)), max(2.0, max(ratios)) * 2.2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}x"))
    axes.set_xticks([t for t in (0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64) if _within(axes, t)])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.axvline(1, color="black", linewidth=1)
    axes.grid(axis="x", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("times as fast as SDPA (right of the line: faster)")
    seen = dict.fromkeys((row["dtype"], row["pass"]) for row in rows)
    handles = [Patch(color=_COLOURS[key], label=" ".join(key)) for key in seen]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _bar(axes: Axes, place: float, row: dict) -> None:
    ratio = row["ratio"]
    axes.barh(place, ratio - 1, left=1, height=0.86, color=_COLOURS[row["dtype"], row["pass"]])
    share = (
        f"{row['read_share']:.0%} of read"
        if row["kind"] == "decode"
        else f"{row['fma_share']:.0%} of FMA peak"
    )
    axes.annotate(
        f"{ratio:.2f}x  {share}",
        (max(ratio, 1), place),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
    )


def _within(axes: Axes, tick: float) -> bool:
    low, high = axes.get_xlim()
    return low <= tick <= high
