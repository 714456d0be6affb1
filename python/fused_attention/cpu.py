"""Which instruction set the CPU kernels use: process-wide."""

from __future__ import annotations

import torch

__all__ = ["active_isa", "isas", "set_isa"]


def isas() -> list[str]:
    """The instruction sets that this build holds and this machine runs, slowest first."""
    return torch.ops.fused_attention.cpu_isas()


def active_isa() -> str:
    """The one that the next call uses.

    At first the fastest, limited by the environment: FUSED_ATTENTION_ISA forces one, else
    ATEN_CPU_CAPABILITY is an upper limit.
    """
    return torch.ops.fused_attention.active_cpu_isa()


def set_isa(name: str) -> None:
    """Make ``name`` the active one; an unknown name raises, naming the choices."""
    torch.ops.fused_attention.set_cpu_isa(name)
