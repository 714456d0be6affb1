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

# The relative difference of the gradients at equal weights. Training has not amplified it, so it is
# the sharp test: about 3e-7 in fp32 and 2e-3 in bf16, where a doubled scale gives 3e-2 in either.
GRADIENT_TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2}


def loss_tolerance(step: int, dtype: str) -> float:
    """Returns how far the losses may be apart in a step, counted from 0.

    The two attentions round differently, and training amplifies any rounding, the more the less
    stable it is. Two copies of this demo that both run SDPA, and whose first weights differ by one
    rounding of fp32, are 2e-6 apart after 240 steps at the default learning rate; at twice the rate
    they are 5e-4 apart after 80 steps and 1e-2 after 120. The tolerance grows likewise, for texts
    and options that train less smoothly than the default; a doubled scale exceeds it at once."""
    start, limit = {"fp32": (1e-4, 5e-2), "bf16": (1e-2, 2e-1)}[dtype]
    return min(start * 10 ** (step / 100), limit)


@dataclass
class Report:
    records: dict[str, Record]
    # At equal weights, before the first step and after the last.
    gradient_differences: list[float]
    tokens_per_step: int
    dtype: str
    threads: int
    megabytes: dict[str, float] = field(default_factory=dict)

    def differences(self) -> list[float]:
        pairs = zip(self.records[FUSED].losses, self.records[SDPA].losses, strict=True)
        return [abs(ours - theirs) for ours, theirs in pairs]

    def tolerances(self) -> list[float]:
        return [loss_tolerance(step, self.dtype) for step in range(len(self.differences()))]

    def same_training(self) -> bool:
        # Written so that a NaN fails.
        return all(
            difference <= tolerance
            for differences, tolerances in (
                (self.differences(), self.tolerances()),
                (self.gradient_differences, [GRADIENT_TOLERANCE[self.dtype]] * 2),
            )
            for difference, tolerance in zip(differences, tolerances, strict=True)
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
            "gradient_differences": self.gradient_differences,
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
            title=f"Same training ({self.dtype}, threads: {self.threads}): "
            f"attention {self.attention_ratio():.2f}x, step {self.step_ratio():.2f}x as fast"
            if self.same_training()
            else "The losses part",
            tolerances=self.tolerances(),
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
        tolerances = self.tolerances()
        before, after = self.gradient_differences
        first, last = f"{tolerances[0]:g}", f"{tolerances[-1]:.1g}"
        numbers = (
            f"the losses differ by at most {max(self.differences()):.1e} (tolerance "
            f"{first if first == last else f'{first} growing to {last}'}), the gradients at equal "
            f"weights "
            f"by {before:.1e} before and {after:.1e} after training (tolerance "
            f"{GRADIENT_TOLERANCE[self.dtype]:g})"
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
