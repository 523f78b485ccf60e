"""A block of a transformer, in plain linear layers."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Attention and a perceptron, each after a LayerNorm and beside a shortcut.

    Args:
        width: Size of a token.
        heads: Attention heads.
        causal: Whether tokens see only those before them and themselves.
    """

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Tokens of the same shape."""
        attended: Tensor = x + self.project(self._attend(self.qkv(self.norm1(x))))
        transformed: Tensor = attended + self.mlp(self.norm2(attended))
        return transformed

    def _attend(self, qkv: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv.chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if self.causal:
            ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
            scores = scores.masked_fill(ones.triu(1), -torch.inf)
        mixed: Tensor = (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2)
        return mixed
