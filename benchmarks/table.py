"""The tables of bench_attention.py: on the terminal, and in Markdown."""

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def print_rows(rows: list[dict], console: Console) -> None:
    for kind in dict.fromkeys(row["kind"] for row in rows):
        decode = kind == "decode"
        table = Table(title=kind, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_style="bold")
        table.add_column("case", no_wrap=True)
        columns = ["dtype", "pass", "fused ms", "SDPA ms", "ratio", "math", "flex"]
        columns += ["GB/s", "read share"] if decode else ["GFLOP/s", "FMA share"]
        columns += ["MiB", "SDPA MiB"]
        for column in columns:
            table.add_column(column, justify="right")
        last = None
        for row in (row for row in rows if row["kind"] == kind):
            if last not in (None, row["case"]):
                table.add_section()
            table.add_row(
                row["case"] if row["case"] != last else "",
                row["dtype"],
                {"forward": "fwd", "forward+backward": "fwd+bwd"}[row["pass"]],
                _milliseconds(row["seconds"]["fused"]),
                _milliseconds(row["seconds"]["sdpa"]),
                _ratio(row["ratio"]),
                _ratio(row["ratio_math"]),
                _ratio(row["ratio_flex"]),
                f"{row['kv_gbps' if decode else 'gflops']:.1f}",
                f"{row['read_share' if decode else 'fma_share']:.2f}",
                *(f"{row['peak_bytes'][name] / 2**20:.2f}" for name in ("fused", "sdpa")),
            )
            last = row["case"]
        console.print(table)
    reasons = {
        f"{name}, {row['pass']}: {reason}"
        for row in rows
        for name, reason in row["absent"].items()
        if reason != "not asked for"
    }
    for reason in sorted(reasons):
        console.print(f"absent: {reason[:200]}", style="dim", markup=False, highlight=False)


def markdown(rows: list[dict], machine: dict) -> str:
    """Returns one line per case: the ratio to SDPA and, in brackets, the share of the ceiling."""
    keys = [(d, p) for d in ("fp32", "bf16", "fp16") for p in ("forward", "forward+backward")]
    keys = [key for key in keys if any((row["dtype"], row["pass"]) == key for row in rows)]
    lines = [
        f"{machine['cpu']}, {machine['threads']} threads, fused_attention on {machine['isa']}, "
        f"torch {machine['torch']} on {machine['torch_isa']}.",
        "",
        "| | " + " | ".join(" ".join(key) for key in keys) + " |",
        "|---|" + "---|" * len(keys),
    ]
    for case, cells in _by_case(rows):
        texts = [_cell(cells[key]) if key in cells else "" for key in keys]
        lines.append(f"| {case} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def _by_case(rows: list[dict]) -> Iterator[tuple[str, dict]]:
    for case in dict.fromkeys(row["case"] for row in rows):
        yield case, {(row["dtype"], row["pass"]): row for row in rows if row["case"] == case}


def _cell(row: dict) -> str:
    share = row["read_share" if row["kind"] == "decode" else "fma_share"]
    return f"{row['ratio']:.2f}x ({share:.2f})"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    colour = "green" if ratio >= 1 else "red"
    return f"[{colour}]{ratio:.2f}x[/]"
