"""One model with its optimiser, stepped and timed."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import cos, pi
from statistics import median
from time import perf_counter

import torch
from attentions import Attend, Clock, timed
from model import Config, LanguageModel

# The first steps pay for allocations and thread start-up.
_WARM_UP = 3


@dataclass
class Record:
    losses: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    attention_seconds: list[float] = field(default_factory=list)

    def median_step(self) -> float:
        return median(_after_warm_up(self.step_seconds))

    def median_attention(self) -> float:
        return median(_after_warm_up(self.attention_seconds))


def _after_warm_up(values: list[float]) -> list[float]:
    return values[_WARM_UP:] if len(values) > 2 * _WARM_UP else values


class Trainer:
    def __init__(self, config: Config, attend: Attend, seed: int, bf16: bool, rate: float = 5e-4):
        torch.manual_seed(seed)
        self.clock = Clock()
        self.model = LanguageModel(config, timed(attend, self.clock))
        self.bf16, self.rate = bf16, rate
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self.record = Record()

    def precision(self) -> AbstractContextManager:
        return torch.autocast("cpu", torch.bfloat16) if self.bf16 else nullcontext()

    def gradients(self, tokens: torch.Tensor, targets: torch.Tensor) -> float:
        """Leaves the gradients in the parameters and returns the loss."""
        self.optimizer.zero_grad()
        with self.precision():
            loss = self.model.loss(tokens, targets)
        loss.backward()
        return loss.item()

    def step(self, tokens: torch.Tensor, targets: torch.Tensor, progress: float) -> None:
        """One training step; `progress` in [0, 1] sets the learning rate."""
        self.clock.take()
        start = perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * _schedule(progress)
        loss = self.gradients(tokens, targets)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.record.step_seconds.append(perf_counter() - start)
        self.record.attention_seconds.append(self.clock.take())
        self.record.losses.append(loss)


def _schedule(progress: float) -> float:
    warm_up = 0.1
    if progress < warm_up:
        return (progress + 0.01) / (warm_up + 0.01)
    return 0.1 + 0.45 * (1 + cos(pi * (progress - warm_up) / (1 - warm_up)))
