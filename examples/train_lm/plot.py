"""The picture: both loss curves, their difference, and where a step's time goes."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from attentions import FUSED, SDPA
from matplotlib.axes import Axes
from trainer import Record

_COLOURS = {FUSED: "#0b6e4f", SDPA: "#e08e45"}
_REST = "#c9ced6"
_SMOOTHING = 12


def draw(records: dict[str, Record], title: str, tolerances: list[float], path: Path) -> None:
    figure = plt.figure(figsize=(12, 5.4), layout="constrained")
    figure.suptitle(title, fontsize=14, fontweight="bold")
    grid = figure.add_gridspec(2, 2, width_ratios=(1.5, 1), height_ratios=(2.4, 1))
    losses = figure.add_subplot(grid[0, 0])
    _losses(losses, records)
    _differences(figure.add_subplot(grid[1, 0], sharex=losses), records, tolerances)
    _time(figure.add_subplot(grid[:, 1]), records)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _losses(axes: Axes, records: dict[str, Record]) -> None:
    # The thin line on the thick one: equal curves look like one line with a core.
    for name, width in ((SDPA, 5.0), (FUSED, 1.4)):
        losses = records[name].losses
        steps = range(1, len(losses) + 1)
        if len(losses) < 4 * _SMOOTHING:
            marker = "o" if len(losses) == 1 else None
            axes.plot(steps, losses, lw=width, color=_COLOURS[name], label=name, marker=marker)
            continue
        axes.plot(steps, losses, lw=width / 3, color=_COLOURS[name], alpha=0.25)
        axes.plot(steps, _running_mean(losses), lw=width, color=_COLOURS[name], label=name)
        axes.set_title(f"pale: each step; strong: mean of {_SMOOTHING} steps", fontsize=9)
    axes.set_ylabel("loss (nats per byte)")
    axes.legend(frameon=False)
    axes.tick_params(labelbottom=False)


def _running_mean(values: list[float]) -> list[float]:
    """Returns the mean of the last _SMOOTHING values, of fewer at the start."""
    windows = (values[max(0, end - _SMOOTHING) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]


def _differences(axes: Axes, records: dict[str, Record], tolerances: list[float]) -> None:
    pairs = list(zip(records[FUSED].losses, records[SDPA].losses, strict=True))
    # A difference of exactly 0 has no place on a logarithmic axis: it is drawn at the bottom.
    floor = 1e-8
    heights = [max(abs(a - b), floor) for a, b in pairs]
    axes.semilogy(range(1, len(pairs) + 1), heights, ".", markersize=3.5, color="#4a4e69")
    axes.semilogy(range(1, len(pairs) + 1), tolerances, "--", color="#b3261e", linewidth=1)
    axes.annotate(
        "tolerance",
        (len(pairs), tolerances[-1]),
        xytext=(0, -4),
        textcoords="offset points",
        ha="right",
        va="top",
        color="#b3261e",
        fontsize=9,
    )
    axes.set_ylim(floor / 2, max([*heights, *tolerances]) * 5)
    axes.set_ylabel("|difference|")
    axes.set_xlabel("step")


def _time(axes: Axes, records: dict[str, Record]) -> None:
    names = (SDPA, FUSED)
    for place, name in enumerate(names):
        attention = 1e3 * records[name].median_attention()
        step = 1e3 * records[name].median_step()
        axes.bar(place, attention, width=0.62, color=_COLOURS[name])
        axes.bar(place, step - attention, width=0.62, bottom=attention, color=_REST)
        inside = {"ha": "center", "va": "center", "fontsize": 11}
        axes.text(
            place,
            attention / 2,
            f"attention\n{attention:.1f} ms",
            color="white",
            fontweight="bold",
            **inside,
        )
        axes.text(place, (attention + step) / 2, f"the rest\n{step - attention:.1f} ms", **inside)
        axes.text(place, step, f"{step:.1f} ms", ha="center", va="bottom", fontweight="bold")
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("median time of a training step (ms)")
    axes.margins(y=0.08)
