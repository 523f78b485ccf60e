"""How far a candidate's message is from what was sent."""

from typing import NamedTuple

import torch
from torch import Tensor


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


def cosine_distance(values: Tensor, sent: Tensor) -> Tensor:
    """1 - ⟨g, y⟩ / (‖g‖ ‖y‖), blind to the scale (Geiping et al., 2020); 1 where one is 0."""
    tiny = torch.finfo(values.dtype).tiny
    norms = (values.square().sum(-1) * sent.square().sum(-1)).clamp(min=tiny).sqrt()
    return 1 - (values * sent).sum(-1) / norms
