"""The tables of docs/performance*.md, from what the benchmarks wrote: a function for each name."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

PASSES = ("forward", "forward+backward")


@dataclass
class Results:
    """The JSON of each benchmark: `main` with the widest ISA, `avx2` held to AVX2 where that is not
    the widest."""

    main: dict
    avx2: dict | None
    scaling: dict
    kernels: dict


def machine(results: Results) -> str:
    about = results.main["machine"]
    lines = [
        f"{about['cpu']}, {about['cores']} cores, {about['threads']} threads; {about['system']}; "
        f"torch {about['torch']} on {about['torch_isa']}; fused_attention {about['commit']} on "
        f"{about['isa']}; {about['date']}.",
        "",
        "```",
        *(run["machine"]["command"] for run in (*_against_sdpa(results), results.scaling)),
        results.kernels["command"],
        "```",
    ]
    return "\n".join(lines)


def ratios(results: Results) -> str:
    return _ratio_table(results.main["rows"])


def ratios_avx2(results: Results) -> str:
    if results.avx2 is None:
        return "AVX2 is the widest that this machine has."
    return _ratio_table(results.avx2["rows"])


def losing(results: Results) -> str:
    """Every row below 1, worst first, both ISAs and the scaling study."""
    found = [
        (row["ratio"], f"{row['case']} {row['dtype']} {row['pass']}", run["machine"]["isa"])
        for run in _against_sdpa(results)
        for row in run["rows"]
    ]
    found += [
        (
            row["ratio"]["sdpa"],
            f"{row['case']} {row['dtype']} {row['pass']}, threads: {row['threads']}",
            results.scaling["machine"]["isa"],
        )
        for row in results.scaling["rows"]
        if "sdpa" in row["ratio"]
    ]
    losing = sorted(entry for entry in found if entry[0] < 1)
    if not losing:
        return f"None of {len(found)} rows."
    rows = [(name, isa, f"{ratio:.2f}x") for ratio, name, isa in losing]
    return f"{len(losing)} of {len(found)} rows:\n\n" + markdown_table(("", "ISA", "ratio"), rows)


def memory(results: Results) -> str:
    """MiB of a call on one thread, results included: ours and SDPA's."""
    header = ("", *(f"{dtype} {p}" for dtype in ("fp32", "bf16") for p in PASSES))
    rows = []
    for case, cells in _by_case(results.main["rows"]):
        texts = []
        for dtype in ("fp32", "bf16"):
            for p in PASSES:
                row = cells.get((dtype, p))
                peaks = [row["peak_bytes"][n] / 2**20 for n in ("fused", "sdpa")] if row else []
                texts.append(" / ".join(f"{peak:.1f}" for peak in peaks))
        rows.append((case, *texts))
    return markdown_table(header, rows)


def scratch(results: Results) -> str:
    """KiB per thread, as the plans of the kernels say."""
    chosen = ("b1_h8_s2048_d64", "b1_h16_2_s2048_d128_causal", "b1_h32_8_decode4096_d128")
    rows = [
        (
            isa,
            shape,
            *(
                f"{_kernel(results, f'{isa}/{_dtype(isa)}/{shape}/{p}')['scratch_KiB']:.0f}"
                for p in _HALVES
            ),
        )
        for isa in _isas(results)
        for shape in chosen
    ]
    return markdown_table(("ISA", "call", *_HALVES), rows)


def one_thread(results: Results) -> str:
    """Share of the FMA peak of whole calls, one thread, CPU time."""
    isas = _isas(results)
    header = ("", *(f"{isa} {p}" for isa in isas for p in _HALVES))
    shapes = dict.fromkeys(
        name.split("/")[2] for name in _names(results) if name.split("/")[1] in ("fp32", "bf16")
    )
    rows = [
        (
            shape,
            *(
                f"{_kernel(results, f'{isa}/{_dtype(isa)}/{shape}/{p}')['share']:.2f}"
                for isa in isas
                for p in _HALVES
            ),
        )
        for shape in shapes
    ]
    return markdown_table(header, rows)


def pieces(results: Results) -> str:
    """The products as a share of the FMA peak, the rest in elements per nanosecond."""
    isas = _isas(results)
    names = dict.fromkeys(
        name.split("/", 2)[2] for name in _names(results) if name.split("/")[1] == "kernel"
    )

    def cell(name: str) -> str:
        if name not in _names(results):
            return ""
        counters = _kernel(results, name)
        if "share" in counters:
            return f"{counters['share']:.2f} of peak"
        return f"{counters['elements/s'] * 1e-9:.1f} / ns"

    rows = [(name, *(cell(f"{isa}/kernel/{name}") for isa in isas)) for name in names]
    return markdown_table(("", *isas), rows)


def bf16_dot(results: Results) -> str:
    names = [name for name in _names(results) if name.startswith("bf16_dot/")]
    if not names:
        return "Not measured: this CPU has no avx512_bf16."
    rows = [(n.split("/")[1], f"{_kernel(results, n)['GFLOP/s']:.0f}") for n in names]
    return markdown_table(("", "GFLOP/s, one thread"), rows)


def scaling(results: Results) -> str:
    """Ratio to SDPA, and our share of the FMA peak, by S."""
    rows = results.scaling["rows"]
    columns = list(dict.fromkeys((r["dtype"], r["pass"], r["threads"]) for r in rows))
    cells = {(r["length"], r["dtype"], r["pass"], r["threads"]): r for r in rows}

    def cell(row: dict) -> str:
        ratio = row["ratio"].get("sdpa")
        return ("-" if ratio is None else f"{ratio:.2f}x") + f" ({row['fma_share']['fused']:.2f})"

    body = [
        (f"S{length}", *(cell(cells[(length, *column)]) for column in columns))
        for length in dict.fromkeys(r["length"] for r in rows)
    ]
    header = ("", *(f"{dtype} {p}, threads: {n}" for dtype, p, n in columns))
    return markdown_table(header, body)


def others(results: Results) -> str:
    """The other contestants of the scaling study: the range of their ratios, and why they miss."""
    rows = results.scaling["rows"]
    lines = []
    for name in dict.fromkeys(n for row in rows for n in (*row["ratio"], *row["absent"])):
        ratios = [row["ratio"][name] for row in rows if name in row["ratio"]]
        span = f"{min(ratios):.2f}x to {max(ratios):.2f}x" if ratios else ""
        reasons: dict[str, list[int]] = {}
        for row in rows:
            if name in row["absent"]:
                # The reason without its numbers: "time", "memory", or the error's name.
                reasons.setdefault(row["absent"][name].split(":")[0], []).append(row["length"])
        why = "; ".join(f"{reason} (from S{min(at)})" for reason, at in reasons.items())
        lines.append((name, f"{len(ratios)} of {len(rows)}", span, why))
    return markdown_table(("", "measured", "ratio", "absent for"), lines)


TABLES: dict[str, Callable[[Results], str]] = {
    "machine": machine,
    "ratios": ratios,
    "ratios-avx2": ratios_avx2,
    "losing": losing,
    "memory": memory,
    "scratch": scratch,
    "one-thread": one_thread,
    "pieces": pieces,
    "bf16-dot": bf16_dot,
    "scaling": scaling,
    "others": others,
}

_HALVES = ("forward", "backward")


def _against_sdpa(results: Results) -> list[dict]:
    return [run for run in (results.main, results.avx2) if run is not None]


def _ratio_table(rows: list[dict]) -> str:
    keys = [(d, p) for d in ("fp32", "bf16", "fp16") for p in PASSES]
    keys = [key for key in keys if any((row["dtype"], row["pass"]) == key for row in rows)]

    def cell(row: dict | None) -> str:
        if row is None:
            return ""
        share = row["read_share" if row["kind"] == "decode" else "fma_share"]
        return f"{row['ratio']:.2f}x ({share:.2f})"

    body = [(case, *(cell(cells.get(key)) for key in keys)) for case, cells in _by_case(rows)]
    return markdown_table(("", *(" ".join(key) for key in keys)), body)


def _by_case(rows: list[dict]) -> Iterable[tuple[str, dict]]:
    for case in dict.fromkeys(row["case"] for row in rows):
        yield case, {(row["dtype"], row["pass"]): row for row in rows if row["case"] == case}


def _names(results: Results) -> list[str]:
    return [entry["name"] for entry in results.kernels["benchmarks"]]


def _isas(results: Results) -> list[str]:
    return list(dict.fromkeys(n.split("/")[0] for n in _names(results) if "/kernel/" in n))


def _dtype(isa: str) -> str:
    """What an ISA is measured in: avx512_bf16 has kernels of its own for bf16 only."""
    return "bf16" if isa == "avx512_bf16" else "fp32"


def _kernel(results: Results, name: str) -> dict:
    return next(entry for entry in results.kernels["benchmarks"] if entry["name"] == name)


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---|" * (len(header) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
