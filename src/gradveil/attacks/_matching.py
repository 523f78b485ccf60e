"""How far a candidate's message is from what was sent."""

from typing import NamedTuple

import torch
from torch import Tensor


class Evidence(NamedTuple):
    """What was sent, as an interval for each entry of the message and a weight.

    An entry with noise is a point with weight 1/std²; a rounded one the cell it was rounded from;
    a pruned one [-τ, τ]; a clipped one the ray beyond the threshold; one that tells nothing has
    weight 0. All in one row, in the order of the parameters' names in the message.
    """

    low: Tensor
    high: Tensor
    weight: Tensor

    def misfit(self, values: Tensor) -> Tensor:
        """½ Σ_i w_i dist(g_i, [low_i, high_i])²: the negative log-likelihood up to a constant."""
        return 0.5 * (self.weight * self.residual(values).square()).sum(-1)

    def residual(self, values: Tensor) -> Tensor:
        """g_i minus the nearest point of its interval."""
        return values - torch.minimum(torch.maximum(values, self.low), self.high)

    def curvature(self, values: Tensor) -> Tensor:
        """The Gauss-Newton weights: w_i outside of the interval, 0 where it is wide and met."""
        outside = (values < self.low) | (values > self.high) | (self.low == self.high)
        return self.weight * outside


def euclidean_evidence(sent: Tensor) -> Evidence:
    """Every entry sent as it is: the misfit is ‖g - y‖² / ‖y‖²."""
    weight = 2 / sent.square().sum(-1, keepdim=True).clamp(min=torch.finfo(sent.dtype).tiny)
    return Evidence(sent, sent, weight.expand(sent.shape))


def cosine_distance(values: Tensor, sent: Tensor) -> Tensor:
    """1 - ⟨g, y⟩ / (‖g‖ ‖y‖), blind to the scale (Geiping et al., 2020); 1 where one is 0."""
    tiny = torch.finfo(values.dtype).tiny
    norms = (values.square().sum(-1) * sent.square().sum(-1)).clamp(min=tiny).sqrt()
    return 1 - (values * sent).sum(-1) / norms


def euclidean_distance(values: Tensor, sent: Tensor) -> Tensor:
    """‖g - y‖² / ‖y‖²."""
    tiny = torch.finfo(values.dtype).tiny
    return (values - sent).square().sum(-1) / sent.square().sum(-1).clamp(min=tiny)
