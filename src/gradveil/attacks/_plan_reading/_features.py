"""An image from what was read of a later layer's input."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp, vmap

from gradveil.sensitivity import draw_probes

from .._evidence import Energy
from ._columns import Columns

HOT, COLD_FROM = 10.0, 0.75
"""The first temperature, and the share of the steps after which it is 1."""

RENEWED, PROBES = 10, 16
"""Every how many steps the slopes ‖∇a_j‖ are measured, and along how many directions."""

OUTLIER = math.log(0.05) - 4
"""The log-likelihood of a column that was read wrong, at any value."""


class FeatureCost:
    """Σ_j -log p(û_j | a_j(x) / ‖∇a_j(x)‖) + E(x), with the sign of each a_j unknown.

    What was read of a layer's input is û_j = |a_j| / ‖∇a_j‖, up to one factor for all, which is
    fitted at every candidate. Each a_j is û_j with a positive or a negative sign, or û_j is wrong:
    a mixture of three. The slopes are constants between their renewals. The temperature falls from
    `HOT` to 1: at first signs are not yet decided.

    Args:
        features: From the inputs to a, one row for each example.
        columns: What was read.
        energy: The prior.
        positive: The share of features that is expected to be positive.
        seed: Of the directions for the slopes.
        hot: The first temperature.
    """

    def __init__(
        self,
        features: Callable[[Tensor], Tensor],
        columns: Columns,
        energy: Energy,
        positive: float,
        seed: int = 0,
        hot: float = HOT,
    ) -> None:
        self.features, self.energy, self.positive = features, energy, positive
        self.seed, self.hot, self.calls = seed, hot, 0
        self.read = columns.mean
        blur = (0.05 * self.read.mean()) ** 2 + (0.1 * self.read).square()
        self.weight = 1 / (columns.spread.square() + blur)

    def __call__(self, inputs: Tensor, progress: float) -> Tensor:
        """The cost of one candidate image at that share of the steps."""
        if self.calls % RENEWED == 0:
            self.slopes = self._slopes(inputs.detach())
        self.calls += 1
        found = self.features(inputs)[0] / self.slopes
        known = (self.weight * self.read.square()).sum()
        factor = (self.weight * found.detach().abs() * self.read).sum() / known
        found = found / factor.clamp(min=torch.finfo(factor.dtype).tiny)
        temperature = self.hot ** (1 - min(1.0, progress / COLD_FROM))
        weight = 0.5 * self.weight / temperature
        cases = torch.stack(
            [
                math.log(self.positive) - weight * (found - self.read).square(),
                math.log(1 - self.positive) - weight * (found + self.read).square(),
                torch.full_like(found, OUTLIER),
            ]
        )
        return self.energy(inputs) - cases.logsumexp(0).sum()

    def _slopes(self, inputs: Tensor) -> Tensor:
        """‖∇a_j‖ from random directions, always the same ones."""
        generator = torch.Generator().manual_seed(self.seed)
        directions = draw_probes(inputs, PROBES, "gaussian", generator)
        moved: Tensor = vmap(lambda v: jvp(self.features, (inputs,), (v,))[1])(directions)
        slopes = moved[:, 0].square().mean(0).sqrt()
        return slopes.clamp(min=1e-6 * float(slopes.mean()) + torch.finfo(slopes.dtype).tiny)
