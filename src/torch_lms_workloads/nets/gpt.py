"""A decoder of the kind of GPT: normalization first, causal attention, one table for tokens in and out.

Positions are sinusoids (arXiv 1706.03762, section 3.5), not learned, so that a sequence may have any length.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_lms.errors import UsageError


class Gpt(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocabulary).

    Args:
        layers, hidden, heads: blocks, channels, and into how many heads attention divides these.
        vocabulary: different tokens.

    Raises:
        UsageError: ``hidden`` cannot be divided so, or not into pairs of sine and cosine.
    """

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        if hidden % heads or hidden % 2:
            raise UsageError(f"hidden must be even and a multiple of heads; got {hidden} and {heads}")
        self.table = nn.Embedding(vocabulary, hidden)
        nn.init.normal_(self.table.weight, std=0.02)
        self.blocks = nn.Sequential(*(_Block(hidden, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.table(tokens)
        return F.linear(self.norm(self.blocks(embedded + _positions(embedded))), self.table.weight)


class _Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_feed = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query_key_value, self.merge = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.feed = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.merge(self._attend(self.query_key_value(self.before_attention(x))))
        fed: Tensor = self.feed(self.before_feed(x))
        return x + fed

    def _attend(self, packed: Tensor) -> Tensor:
        query, key, value = packed.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        return F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)


def _positions(embedded: Tensor) -> Tensor:
    """Waves of periods from 2 pi to 10000 x 2 pi, (length, hidden)."""
    _, length, hidden = embedded.shape
    place = torch.arange(length, device=embedded.device, dtype=torch.float32)
    powers = torch.arange(0, hidden, 2, device=embedded.device, dtype=torch.float32) / hidden
    angles = torch.outer(place, torch.exp(-math.log(10_000) * powers))
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(embedded.dtype)
