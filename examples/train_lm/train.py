#!/usr/bin/env python3
"""Trains one small language model twice from the same seed, on the same batches, in one process:
once with fused_attention, once with torch's scaled_dot_product_attention. Shows that the training
is the same, and how much faster it is. Exits with 1 if the losses part.
"""

import argparse
import sys
from pathlib import Path

import torch
from attentions import ATTENTIONS, FUSED, SDPA
from data import Batches, load_bytes
from memory import peak_megabytes
from model import Config
from report import Report
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from trainer import Trainer


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    console = Console()
    config = Config(
        layers=options.layers,
        width=options.width,
        heads=options.heads,
        kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        context=options.context,
    )
    batches = Batches(load_bytes(options.text), options.batch, options.context, options.seed)
    trainers = {
        name: Trainer(config, attend, options.seed, options.dtype == "bf16")
        for name, attend in ATTENTIONS.items()
    }
    parameters = sum(p.numel() for p in trainers[FUSED].model.parameters())
    console.print(
        f"[bold]Byte-level transformer, {parameters / 1e6:.1f} M parameters[/bold]: "
        f"{config.layers} layers of {config.heads} query / {config.kv_heads} key-value heads of "
        f"{config.head_dim}, context {config.context}, batch {options.batch}, {options.dtype}, "
        f"{torch.get_num_threads()} threads.\n"
        f"Text: {options.text or 'the Python standard library'}, {len(batches.train):,} bytes. "
        f"Two copies from seed {options.seed}, stepped in turn on the same batches."
    )
    gradient_differences = [compare_gradients(trainers, batches)]
    train(trainers, batches, options.steps, console)
    trainers[SDPA].model.load_state_dict(trainers[FUSED].model.state_dict())
    gradient_differences.append(compare_gradients(trainers, batches))
    report = Report(
        records={name: trainer.record for name, trainer in trainers.items()},
        gradient_differences=gradient_differences,
        tokens_per_step=options.batch * config.context,
        dtype=options.dtype,
        threads=torch.get_num_threads(),
    )
    if report.same_training():
        report.megabytes = peak_megabytes(
            list(ATTENTIONS), config, options.batch, options.dtype == "bf16", report.threads
        )
    report.print(console)
    sample(trainers[FUSED], batches, options, console)
    report.save(options.out)
    console.print(f"Plot: {options.out / 'train_lm.png'}, numbers: {options.out / 'train_lm.json'}")
    return 0 if report.same_training() else 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--text", type=Path, help="train on this file, not the standard library")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own choice)")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of plot and numbers")
    parser.add_argument("--sample", type=int, default=240, help="bytes of the continuation")
    shape = Config()
    for name in ("layers", "width", "heads", "kv_heads", "head_dim", "context"):
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=int, default=getattr(shape, name))
    options = parser.parse_args(arguments)
    if options.text and not options.text.is_file():
        parser.error(f"--text: there is no file {options.text}")
    for name in ("steps", "batch", "layers", "width", "heads", "kv_heads", "head_dim", "context"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return options


def compare_gradients(trainers: dict[str, Trainer], batches: Batches) -> float:
    """Returns the relative difference of all gradients of the two models, which must have equal
    weights: no training has amplified it, so it shows the attentions alone."""
    batch = batches.next()
    gradients = []
    for trainer in trainers.values():
        trainer.gradients(*batch)
        gradients.append(torch.cat([p.grad.flatten() for p in trainer.model.parameters()]).double())
    ours, theirs = gradients
    return float((ours - theirs).norm() / theirs.norm())


def train(trainers: dict[str, Trainer], batches: Batches, steps: int, console: Console) -> None:
    columns = (
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=steps, state="")
        for step in range(steps):
            batch = batches.next()
            # Who goes first changes, so that neither always finds the caches of the other.
            order = list(trainers.values())
            for trainer in order if step % 2 == 0 else reversed(order):
                trainer.step(*batch, progress=step / steps)
            ours, theirs = trainers[FUSED].record, trainers[SDPA].record
            progress.update(
                task,
                advance=1,
                state=f"loss {ours.losses[-1]:.3f} | {theirs.losses[-1]:.3f}  "
                f"{1e3 * ours.step_seconds[-1]:.0f} | {1e3 * theirs.step_seconds[-1]:.0f} ms  "
                f"(fused | SDPA)",
            )
            # A bar is drawn on terminals only; a log gets a line now and then.
            if not console.is_terminal and (step + 1) % max(1, steps // 10) == 0:
                console.print(
                    f"step {step + 1} of {steps}: loss {ours.losses[-1]:.3f} (fused) "
                    f"{theirs.losses[-1]:.3f} (SDPA)"
                )


def sample(
    trainer: Trainer, batches: Batches, options: argparse.Namespace, console: Console
) -> None:
    prompt = batches.prompt(min(48, options.context))
    generator = torch.Generator().manual_seed(options.seed)
    with trainer.precision():
        tokens = trainer.model.continue_text(prompt, options.sample, 0.7, generator)
    head, tail = (
        bytes(part.tolist()).decode("utf-8", "replace")
        for part in tokens.split([prompt.size(1), options.sample])
    )
    console.rule("a continuation by the model trained with fused_attention")
    console.print(head, style="dim", end="", markup=False, highlight=False)
    console.print(tail.rstrip(), style="bold", markup=False, highlight=False)
    console.rule()


if __name__ == "__main__":
    sys.exit(main())
