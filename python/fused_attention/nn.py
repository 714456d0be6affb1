"""A self-attention layer over the fused operator; the twin of the C++ ``nn::Attention``."""

from __future__ import annotations

import torch
from torch import Tensor

from .ops import attention

__all__ = ["Attention", "rotate"]


def rotate(tensor: Tensor, theta: float = 10000.0, start: int = 0) -> Tensor:
    """Rotary position embedding (Su et al. 2021, section 3.2.2), in GPT-NeoX's half-rotation form.

    Channel c < D/2 is paired with c + D/2, and turned by the angle p * theta^(-2 c / D) at position
    p = start, start + 1, ...

    Args:
        tensor: (..., S, H, D), D even.

    Returns:
        The rotated tensor, same shape and dtype. Angles are computed in float32 (float64 for
        float64).
    """
    dim = tensor.size(-1)
    dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    channels = torch.arange(0, dim, 2, dtype=dtype, device=tensor.device)
    positions = torch.arange(tensor.size(-3), dtype=dtype, device=tensor.device) + start
    angles = torch.outer(positions, torch.pow(theta, -channels / dim)).unsqueeze(1)
    cos, sin = angles.cos().to(tensor.dtype), angles.sin().to(tensor.dtype)
    first, second = tensor.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Attention(torch.nn.Module):
    """Multi-head self-attention with grouped heads (Ainslie et al. 2023) and rotary positions.

    Args:
        embed_dim: width E of input and output.
        num_heads: query heads Hq.
        num_kv_heads: key-value heads Hkv, a divisor of ``num_heads``; ``num_heads`` by default.
        bias: biases in the four projections.
        head_dim: D, ``embed_dim // num_heads`` by default.
        causal: a position sees itself and those before it.
        rope: turn queries and keys by their position, see ``rotate``.
        rope_theta: base of the angles; tables are computed on the fly, there is no maximum length.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        bias: bool = True,
        head_dim: int | None = None,
        causal: bool = False,
        rope: bool = False,
        rope_theta: float = 10000.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if embed_dim < 1 or num_heads < 1 or num_kv_heads < 1 or num_heads % num_kv_heads != 0:
            raise ValueError(
                "Attention: expected positive embed_dim and num_heads and num_kv_heads dividing "
                f"num_heads, but got {embed_dim}, {num_heads} and {num_kv_heads}"
            )
        if head_dim is None:
            if embed_dim % num_heads != 0:
                raise ValueError(
                    "Attention: expected num_heads to divide embed_dim when head_dim is not given, "
                    f"but got {num_heads} and {embed_dim}"
                )
            head_dim = embed_dim // num_heads
        if head_dim < 1 or (rope and head_dim % 2 != 0):
            raise ValueError(
                f"Attention: expected a positive head_dim, even with rope, but got {head_dim}"
            )
        self.embed_dim, self.head_dim = embed_dim, head_dim
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.causal, self.rope, self.rope_theta = causal, rope, rope_theta
        options = {"bias": bias, "device": device, "dtype": dtype}
        self.q_proj = torch.nn.Linear(embed_dim, num_heads * head_dim, **options)
        self.k_proj = torch.nn.Linear(embed_dim, num_kv_heads * head_dim, **options)
        self.v_proj = torch.nn.Linear(embed_dim, num_kv_heads * head_dim, **options)
        self.o_proj = torch.nn.Linear(num_heads * head_dim, embed_dim, **options)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Input and output (..., S, E); ``attn_mask`` broadcasts to (..., Hq, S, S)."""
        query = self.q_proj(x).unflatten(-1, (self.num_heads, self.head_dim))
        key = self.k_proj(x).unflatten(-1, (self.num_kv_heads, self.head_dim))
        value = self.v_proj(x).unflatten(-1, (self.num_kv_heads, self.head_dim))
        if self.rope:
            query, key = rotate(query, self.rope_theta), rotate(key, self.rope_theta)
        output = attention(
            query.transpose(-3, -2),
            key.transpose(-3, -2),
            value.transpose(-3, -2),
            attn_mask,
            is_causal=self.causal,
        )
        return self.o_proj(output.transpose(-3, -2).flatten(-2))

    def extra_repr(self) -> str:
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, "
            f"num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}, causal={self.causal}, "
            f"rope={self.rope}"
        )
