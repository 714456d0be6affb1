"""The two attention functions that the demo compares, and a clock that times them in the step."""

from collections.abc import Callable
from time import perf_counter

import torch
import torch.nn.functional as F

import fused_attention

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

FUSED, SDPA = "fused_attention", "torch SDPA"


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return fused_attention.attention(q, k, v, is_causal=True)


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


ATTENTIONS: dict[str, Attend] = {FUSED: fused, SDPA: sdpa}


class Clock:
    """Sums the time from attention's inputs to its output, and in backward from the gradient of its
    output to those of its inputs. The engine runs a CPU graph in the calling thread, one node after
    the other, so marks around the call see exactly the call."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.started = 0.0

    def start(self) -> None:
        self.started = perf_counter()

    def stop(self) -> None:
        self.seconds += perf_counter() - self.started

    def take(self) -> float:
        """Returns the seconds since the last take."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class _Inputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, clock, *inputs):
        ctx.clock = clock
        return tuple(x.view_as(x) for x in inputs)

    @staticmethod
    def backward(ctx, *grads):
        ctx.clock.stop()
        return None, *grads


class _Output(torch.autograd.Function):
    @staticmethod
    def forward(ctx, clock, output):
        ctx.clock = clock
        return output.view_as(output)

    @staticmethod
    def backward(ctx, grad):
        ctx.clock.start()
        return None, grad


def timed(attend: Attend, clock: Clock) -> Attend:
    """Returns `attend` with its forward and backward time added to `clock`."""

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = _Inputs.apply(clock, q, k, v)
        clock.start()
        output = attend(q, k, v)
        clock.stop()
        return _Output.apply(clock, output)

    return call
