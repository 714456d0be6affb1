"""The picture of bench_scaling.py, by S: ratios to the contestants, and shares of the peak."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

_COLOURS = {
    "fused": "#1d6fa5",
    "sdpa": "#d1602d",
    "math": "#8a8a8a",
    "bmm": "#5b9a4a",
    "flex": "#8e5ba6",
}
_NAMES = {
    "fused": "fused_attention",
    "sdpa": "SDPA",
    "math": "SDPA, math form",
    "bmm": "torch.bmm",
    "flex": "compiled FlexAttention",
}
_STYLES = ("-", "--", ":")


def draw(rows: list[dict], machine: dict, path: Path) -> None:
    panels = list(dict.fromkeys((row["dtype"], row["pass"]) for row in rows))
    threads = list(dict.fromkeys(row["threads"] for row in rows))
    width = max(3.4 * len(panels), 7.0)
    figure, grid = plt.subplots(
        2, len(panels), figsize=(width, 7), sharex=True, sharey="row", layout="constrained"
    )
    grid = grid.reshape(2, len(panels))
    case = rows[0]["case"].replace(f"S{rows[0]['length']} ", "")
    figure.suptitle(
        f"Attention by sequence length, {case}\n{machine['cpu']}, {machine['isa']}, "
        f"torch {machine['torch']}",
        fontsize=11,
    )
    for column, panel in enumerate(panels):
        ratios, shares = grid[:, column]
        for count, style in zip(threads, _STYLES, strict=False):
            chosen = [r for r in rows if (r["dtype"], r["pass"]) == panel and r["threads"] == count]
            for name in _COLOURS:
                if name != "fused":
                    _line(ratios, chosen, "ratio", name, style)
                _line(shares, chosen, "fma_share", name, style)
        ratios.set_title(" ".join(panel), fontsize=10)
        ratios.set_yscale("log")
        ratios.axhline(1, color="black", linewidth=1)
        shares.set_ylim(0, 1)
        shares.set_xlabel("S")
        _ticks(shares, sorted({row["length"] for row in rows}))
        for axes in (ratios, shares):
            axes.grid(linewidth=0.4, alpha=0.6)
            axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].set_ylabel("time of the other / time of fused_attention")
    ratio_ticks = FuncFormatter(lambda y, _: f"{y:g}x" if f"{y:e}"[0] in "125" else "")
    grid[0, 0].yaxis.set_major_formatter(ratio_ticks)
    grid[0, 0].yaxis.set_minor_formatter(ratio_ticks)
    grid[1, 0].set_ylabel("share of the FMA peak")
    seen = [n for n in _COLOURS if any(n in row["seconds"] for row in rows)]
    handles = [Line2D([], [], color=_COLOURS[name], label=_NAMES[name]) for name in seen]
    handles += [
        Line2D([], [], color="black", linestyle=style, label=f"threads: {count}")
        for count, style in zip(threads, _STYLES, strict=False)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _line(axes: Axes, rows: list[dict], key: str, name: str, style: str) -> None:
    points = [(row["length"], row[key][name]) for row in rows if name in row[key]]
    if points:
        axes.plot(
            *zip(*points, strict=True), style, color=_COLOURS[name], marker=".", linewidth=1.3
        )


def _ticks(axes: Axes, lengths: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(
        lengths, [f"{s // 1024}k" if s >= 1024 else str(s) for s in lengths], fontsize=8
    )
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
