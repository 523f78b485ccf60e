"""How far a candidate's message is from what was sent."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function


class Evidence(NamedTuple):
    """What was sent, as an interval for each entry of the message and a weight.

    An entry with noise is a point with weight 1/std²; a rounded one the cell it was rounded from;
    a pruned one [-τ, τ]; one that tells nothing has weight 0. What was clipped first is compared
    after clipping. All in one row, in the order of the parameters' names in the message.
    """

    low: Tensor
    high: Tensor
    weight: Tensor
    clip: Tensor | None = None
    """The thresholds P of clipping to [-P, P], infinite where there are none."""

    def misfit(self, values: Tensor) -> Tensor:
        """½ Σ_i w_i dist(clip(g_i), [low_i, high_i])²: -log-likelihood up to a constant."""
        return 0.5 * (self.weight * self.residual(values).square()).sum(-1)

    def residual(self, values: Tensor) -> Tensor:
        """clip(g_i) minus the nearest point of its interval."""
        if self.clip is not None:
            values = torch.minimum(torch.maximum(values, -self.clip), self.clip)
        return values - torch.minimum(torch.maximum(values, self.low), self.high)

    def slope(self, values: Tensor) -> Tensor:
        """The derivative of the misfit; 0 beyond the clipping threshold."""
        return self.weight * self.residual(values) * self._moves(values)

    def curvature(self, values: Tensor) -> Tensor:
        """The Gauss-Newton weights: w_i outside of the interval, 0 where it is wide and met."""
        outside = (values < self.low) | (values > self.high) | (self.low == self.high)
        return self.weight * outside * self._moves(values)

    def _moves(self, values: Tensor) -> Tensor | float:
        return 1.0 if self.clip is None else (values.abs() <= self.clip).to(values)


def euclidean_evidence(sent: Tensor) -> Evidence:
    """Every entry sent as it is: the misfit is ‖g - y‖² / ‖y‖²."""
    weight = 2 / sent.square().sum(-1, keepdim=True).clamp(min=torch.finfo(sent.dtype).tiny)
    return Evidence(sent, sent, weight.expand(sent.shape))


SHORT = 2**20
"""Entries of a message up to which one row is faster than its tensors one by one."""


def cosine_distance(values: Tensor | Sequence[Tensor], sent: Tensor) -> Tensor:
    """1 - ⟨g, y⟩ / (‖g‖ ‖y‖), blind to the scale (Geiping et al., 2020); 1 where one is 0.

    The message in one row, or tensor by tensor: rows of millions of entries are slow to make.
    """
    parts = [values] if isinstance(values, Tensor) else list(values)
    if len(parts) > 1 and len(sent) < SHORT:
        parts = [torch.cat([part.reshape(-1) for part in parts])]
    sums: Tensor = _Products.apply(sent, *parts)
    own, product = sums.unbind()
    norms = (own * sent.dot(sent)).clamp(min=torch.finfo(own.dtype).tiny).sqrt()
    return 1 - product / norms


class _Products(Function):
    """(⟨g, g⟩, ⟨g, y⟩), with a derivative in g of one pass: 2 a g + b y."""

    generate_vmap_rule = True

    @staticmethod
    def forward(sent: Tensor, *values: Tensor) -> Tensor:
        pairs = list(zip(values, sent.split([v.numel() for v in values]), strict=True))
        own = torch.stack([g.reshape(-1).dot(g.reshape(-1)) for g, _ in pairs]).sum()
        product = torch.stack([g.reshape(-1).dot(y) for g, y in pairs]).sum()
        return torch.stack([own, product])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        sent, *values = ctx.saved_tensors
        own, product = gradient.unbind()
        found = [
            torch.addcmul(g * (2 * own), y.view_as(g), product)
            for g, y in zip(values, sent.split([v.numel() for v in values]), strict=True)
        ]
        return None, *found  # what was sent is no variable
