"""What the two trainings are compared by: the tables, the verdict, the plot, the JSON file."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from attentions import FUSED, SDPA
from plot import draw
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from trainer import Record

# The two attentions round differently, and training amplifies a difference of roundings. In fp32
# the losses of torch's own flash and math attentions part by up to 2e-5 in 150 steps of this demo;
# a wrong scale parts them by more than 1e-2 within a few. bf16 has 2^16 times coarser roundings.
LOSS_TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2}
# At equal weights: 100 roundings of fp32 (1.2e-7), and 10 of bf16 (7.8e-3).
GRADIENT_TOLERANCE = {"fp32": 1e-5, "bf16": 8e-2}


@dataclass
class Report:
    records: dict[str, Record]
    gradient_difference: float
    tokens_per_step: int
    dtype: str
    threads: int
    megabytes: dict[str, float] = field(default_factory=dict)

    def differences(self) -> list[float]:
        pairs = zip(self.records[FUSED].losses, self.records[SDPA].losses, strict=True)
        return [abs(ours - theirs) for ours, theirs in pairs]

    def same_training(self) -> bool:
        # Written so that a NaN fails.
        return (
            all(d <= LOSS_TOLERANCE[self.dtype] for d in self.differences())
            and self.gradient_difference <= GRADIENT_TOLERANCE[self.dtype]
        )

    def step_ratio(self) -> float:
        return self.records[SDPA].median_step() / self.records[FUSED].median_step()

    def attention_ratio(self) -> float:
        return self.records[SDPA].median_attention() / self.records[FUSED].median_attention()

    def print(self, console: Console) -> None:
        console.print(self._losses())
        console.print(self._costs())
        console.print(self._verdict())

    def save(self, folder: Path) -> None:
        """Writes train_lm.json and train_lm.png."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "same_training": self.same_training(),
            "largest_loss_difference": max(self.differences()),
            "gradient_difference": self.gradient_difference,
            "dtype": self.dtype,
            "threads": self.threads,
            "step_ratio": self.step_ratio(),
            "attention_ratio": self.attention_ratio(),
            "models": {
                name: {
                    "losses": record.losses,
                    "median_step_seconds": record.median_step(),
                    "median_attention_seconds": record.median_attention(),
                    "tokens_per_second": self.tokens_per_step / record.median_step(),
                    "peak_megabytes": self.megabytes.get(name),
                }
                for name, record in self.records.items()
            },
        }
        (folder / "train_lm.json").write_text(json.dumps(content, indent=1) + "\n")
        draw(
            self.records,
            title=f"Same training ({self.dtype}, {self.threads} threads): "
            f"attention {self.attention_ratio():.2f}x, step {self.step_ratio():.2f}x as fast"
            if self.same_training()
            else "The losses part",
            tolerance=LOSS_TOLERANCE[self.dtype],
            path=folder / "train_lm.png",
        )

    def _losses(self) -> Table:
        table = Table(title="Loss (nats per byte)")
        for heading in ("step", FUSED, SDPA, "difference"):
            table.add_column(heading, justify="right")
        differences = self.differences()
        for step in _spread(len(differences), 9):
            ours, theirs = (self.records[name].losses[step] for name in (FUSED, SDPA))
            table.add_row(str(step + 1), f"{ours:.5f}", f"{theirs:.5f}", f"{differences[step]:.1e}")
        return table

    def _costs(self) -> Table:
        table = Table(title="Time and memory", caption="medians; attention is timed in the step")
        table.add_column("")
        for heading in (FUSED, SDPA, "gain"):
            table.add_column(heading, justify="right")
        ours, theirs = self.records[FUSED], self.records[SDPA]

        def row(what: str, a: float, b: float, gain: float, form: str, **style: str) -> None:
            table.add_row(what, form.format(a), form.format(b), f"{gain:.2f}x", **style)

        a, b = ours.median_attention(), theirs.median_attention()
        row("attention, forward + backward", 1e3 * a, 1e3 * b, b / a, "{:.1f} ms", style="bold")
        c, d = ours.median_step(), theirs.median_step()
        row("whole training step", 1e3 * c, 1e3 * d, d / c, "{:.1f} ms", style="bold")
        table.add_row("attention's share of the step", f"{a / c:.0%}", f"{b / d:.0%}", "")
        n = self.tokens_per_step
        row("tokens per second", n / c, n / d, d / c, "{:,.0f}")
        if self.megabytes:
            e, f = self.megabytes[FUSED], self.megabytes[SDPA]
            row("peak memory, own process", e, f, f / e, "{:.0f} MiB")
        return table

    def _verdict(self) -> Panel:
        loss, gradient = max(self.differences()), self.gradient_difference
        limits = LOSS_TOLERANCE[self.dtype], GRADIENT_TOLERANCE[self.dtype]
        numbers = (
            f"largest loss difference {loss:.1e} (tolerance {limits[0]:g}), gradients before the "
            f"first step differ by {gradient:.1e} (tolerance {limits[1]:g})"
        )
        if not self.same_training():
            return Panel(f"[bold red]The trainings PART:[/] {numbers}.", border_style="red")
        return Panel(
            f"[bold green]Same training:[/] {numbers}.\n"
            f"[bold green]Attention is {self.attention_ratio():.2f} times as fast as torch's SDPA, "
            f"the whole step {self.step_ratio():.2f} times.[/]",
            border_style="green",
        )


def _spread(count: int, rows: int) -> list[int]:
    """Returns up to `rows` indices below `count`, the first and the last among them."""
    if count <= rows:
        return list(range(count))
    return sorted({round(i * (count - 1) / (rows - 1)) for i in range(rows)})
