"""A byte-level decoder: pre-norm blocks of grouped-query attention with RoPE, and GELU."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from attentions import Attend
from torch import nn

VOCABULARY = 256


@dataclass(frozen=True)
class Config:
    layers: int = 4
    width: int = 256
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    context: int = 1024


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021), the two halves of a head being the pairs."""

    def __init__(self, dim: int, context: int, base: float = 10_000.0):
        super().__init__()
        frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angles = torch.outer(torch.arange(context, dtype=torch.float64), frequencies)
        self.register_buffer("cos", angles.cos().float()[:, None], persistent=False)
        self.register_buffer("sin", angles.sin().float()[:, None], persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (B, S, H, D)."""
        cos, sin = self.cos[: x.size(1)], self.sin[: x.size(1)]
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class SelfAttention(nn.Module):
    def __init__(self, config: Config, attend: Attend):
        super().__init__()
        self.config, self.attend = config, attend
        inner, inner_kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.split = [inner, inner_kv, inner_kv]
        self.qkv = nn.Linear(config.width, sum(self.split), bias=False)
        self.out = nn.Linear(inner, config.width, bias=False)
        self.rotary = Rotary(config.head_dim, config.context)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (-1, self.config.head_dim))
            for part in self.qkv(x).split(self.split, dim=-1)
        )
        q, k = self.rotary(q), self.rotary(k)
        # (B, S, H, D) seen as (B, H, S, D): both attentions take strided views.
        output = self.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.out(output.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, config: Config, attend: Attend):
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = SelfAttention(config, attend)
        self.norm_mlp = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x))))


class LanguageModel(nn.Module):
    def __init__(self, config: Config, attend: Attend):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(VOCABULARY, config.width)
        self.blocks = nn.ModuleList(Block(config, attend) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, VOCABULARY, bias=False)
        self.apply(self._initialise)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: (B, S) int64. Returns the logits of the next byte, (B, S, 256)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self(tokens).flatten(0, 1).float(), targets.flatten())

    @torch.no_grad()
    def continue_text(
        self, tokens: torch.Tensor, count: int, temperature: float, generator: torch.Generator
    ) -> torch.Tensor:
        """Samples `count` bytes after `tokens` (1, S); returns them all, (S + count)."""
        for _ in range(count):
            logits = self(tokens[:, -self.config.context :])[0, -1].float() / temperature
            drawn = torch.multinomial(logits.softmax(0), 1, generator=generator)
            tokens = torch.cat((tokens, drawn[None]), dim=1)
        return tokens[0]
