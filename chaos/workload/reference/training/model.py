"""A small decoder in the manner of LLaMA, over bytes: RMSNorm, rotary positions, causal attention, SwiGLU.

Touvron et al. 2023 (arXiv:2302.13971); rotary embeddings: Su et al. 2021 (arXiv:2104.09864). Query, key and value share
one projection, gate and up another: at this size an operation costs more than its arithmetic.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chaos.workload.reference.config import ModelShape

VOCABULARY = 256
_EPSILON = 1e-5
_ROTARY_BASE = 10_000.0
_INIT_STD = 0.02


class Attention(nn.Module):
    """Causal self-attention with rotary positions; ``[batch, time, dim]`` to the same."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.dim, 3 * shape.dim, bias=False)
        self.out = nn.Linear(shape.dim, shape.dim, bias=False)

    def forward(self, x: Tensor, rotary: Tensor) -> Tensor:
        """``rotary``: complex ``[time, dim / heads / 2]``."""
        batch, time, dim = x.shape
        qkv = self.qkv(x).view(batch, time, 3 * self.heads, dim // self.heads).transpose(1, 2)
        qk, value = qkv.split([2 * self.heads, self.heads], dim=1)
        turned = torch.view_as_complex(qk.unflatten(-1, (-1, 2))) * rotary
        query, key = torch.view_as_real(turned).flatten(-2).chunk(2, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, dim))
        return out


class FeedForward(nn.Module):
    """SwiGLU; ``[batch, time, dim]`` to the same."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_up = nn.Linear(shape.dim, 2 * shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate) * up)
        return out


class Block(nn.Module):
    """One layer: attention, then feed-forward, each normalised before and added to the stream."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.dim, eps=_EPSILON)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.dim, eps=_EPSILON)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, rotary: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Decoder(nn.Module):
    """The whole model; its initial parameters are a function of ``seed`` alone."""

    def __init__(self, shape: ModelShape, seed: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, shape.dim)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim, eps=_EPSILON)
        self.head = nn.Linear(shape.dim, VOCABULARY, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.weight
        half = shape.dim // shape.heads // 2
        frequency = _ROTARY_BASE ** -(torch.arange(half) / half)
        angle = torch.outer(torch.arange(shape.context), frequency)
        self.register_buffer("rotary", torch.polar(torch.ones_like(angle), angle), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=_INIT_STD, generator=generator)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats of ``targets`` given ``inputs``, both int64 ``[batch, context]``."""
        x = self.embedding(inputs)
        for block in self.blocks:
            x = block(x, self.rotary)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
