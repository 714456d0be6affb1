"""What is measured: the shapes, their masks, and how much work a perfect implementation does."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Case:
    """One row group. `mask`: "" (none), "documents" (bool (B, 1, S, S): packed documents, causal
    inside each), "padding" (bool (B, 1, 1, S): a key length per sequence)."""

    kind: str
    b: int
    hq: int
    hkv: int
    sq: int
    sk: int
    d: int
    causal: bool = False
    mask: str = ""
    quick: bool = False

    @property
    def name(self) -> str:
        length = f"S{self.sk}" if self.sq == self.sk else f"Sq{self.sq} Sk{self.sk}"
        parts = [f"B{self.b}", f"H{self.hq}/{self.hkv}", length, f"D{self.d}"]
        parts += ["causal"] * self.causal + ([f"{self.mask} mask"] if self.mask else [])
        return " ".join(parts)


CASES = (
    Case("training", 4, 8, 8, 128, 128, 64, quick=True),
    Case("training", 2, 12, 12, 1024, 1024, 64, causal=True, quick=True),
    Case("training", 1, 9, 3, 1024, 1024, 64, causal=True, quick=True),
    Case("training", 8, 6, 2, 256, 256, 64, causal=True, quick=True),
    Case("training", 1, 8, 8, 2048, 2048, 64),
    Case("training", 1, 16, 2, 2048, 2048, 128, causal=True),
    Case("mask", 2, 8, 8, 1024, 1024, 64, mask="documents", quick=True),
    Case("mask", 4, 8, 8, 512, 512, 64, mask="padding"),
    # Sizes that fill no vector, tile or block.
    Case("odd", 2, 12, 12, 1000, 1000, 64, causal=True),
    Case("odd", 2, 8, 8, 333, 333, 64),
    Case("odd", 1, 8, 8, 1024, 1024, 40),
    Case("odd", 1, 8, 8, 1024, 1024, 64),
    Case("odd", 1, 8, 8, 1024, 1024, 80),
    Case("odd", 1, 8, 8, 1024, 1024, 96),
    Case("odd", 1, 1, 1, 2048, 2048, 64),
    # Few queries against many keys.
    Case("cross", 1, 8, 8, 2, 4096, 64),
    Case("cross", 1, 32, 8, 4, 4096, 128),
    Case("cross", 1, 8, 8, 16, 4096, 64),
    # Calls of microseconds.
    Case("tiny", 1, 2, 2, 16, 16, 16, quick=True),
    Case("tiny", 32, 4, 4, 32, 32, 32, quick=True),
    Case("decode", 1, 32, 8, 1, 4096, 128, quick=True),
    Case("decode", 1, 64, 8, 1, 8192, 128),
    Case("decode", 1, 8, 1, 1, 32768, 128),
    Case("decode", 8, 9, 3, 1, 1024, 64, quick=True),
)


@dataclass
class Inputs:
    """q: (B, Hq, Sq, D), k and v: (B, Hkv, Sk, D), views of one contiguous `kv`."""

    q: torch.Tensor
    kv: torch.Tensor
    mask: torch.Tensor | None
    grad: torch.Tensor

    @property
    def k(self) -> torch.Tensor:
        return self.kv[0]

    @property
    def v(self) -> torch.Tensor:
        return self.kv[1]


def make_inputs(case: Case, dtype: torch.dtype, seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    q = random(case.b, case.hq, case.sq, case.d)
    kv = random(2, case.b, case.hkv, case.sk, case.d)
    return Inputs(q, kv, make_mask(case), random(case.b, case.hq, case.sq, case.d))


def make_mask(case: Case) -> torch.Tensor | None:
    if case.mask == "documents":
        document = torch.arange(case.sk) * 4 // case.sk
        same = document[:, None] == document[None, :]
        return same.tril().expand(case.b, 1, case.sq, case.sk).contiguous()
    if case.mask == "padding":
        lengths = case.sk - torch.arange(case.b) * case.sk // (2 * case.b)
        return (torch.arange(case.sk) < lengths[:, None])[:, None, None, :]
    return None


def visible_pairs(case: Case) -> int:
    """Returns the visible (query, key) pairs of one head, summed over the batch."""
    if case.causal:
        return case.b * sum(min(i + 1, case.sk) for i in range(case.sq))
    mask = make_mask(case)
    if mask is None:
        return case.b * case.sq * case.sk
    return int(mask.expand(case.b, 1, case.sq, case.sk).sum())


def flops(case: Case, backward: bool) -> float:
    """Returns the FLOPs of the visible pairs only, a multiply-add being two: QK^T and PV forward;
    QK^T again, dO V^T, P^T dO, dS K, dS^T Q backward."""
    return 2.0 * (7 if backward else 2) * visible_pairs(case) * case.hq * case.d
