"""The direction of which a message tells most."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradveil._random import generator_or_fresh, normal_like

from ._bound_case import BoundCase
from ._fisher import FisherInformation, MeanInformation

PRODUCTS, ENOUGH = 40, 1e-3
"""At most so many products; fewer where the value grows by less than this share."""


def largest_information(
    cases: Sequence[BoundCase], generator: torch.Generator | None = None
) -> float:
    """The largest eigenvalue of J_D, the mean information over batches: λ.

    Whoever sees the inputs themselves with noise of 1 / √λ knows at least as much of every
    direction. That is the level for `LearnedPrior.measure`.

    Args:
        cases: Batches of one shape, each with its message and its mechanism.
        generator: For the direction to start from.
    """
    information = MeanInformation([FisherInformation(*case) for case in cases])
    return largest_eigenvalue(information, generator_or_fresh(generator))


def largest_eigenvalue(information: MeanInformation, generator: torch.Generator) -> float:
    """By power iteration: from below, and nearly reached."""
    blank = torch.empty(1, information.size, dtype=torch.float64)
    row: Tensor = normal_like(blank, generator).to(information.device)
    value = 0.0
    for _ in range(PRODUCTS):
        row = information(row / row.norm().clamp(min=torch.finfo(torch.float64).tiny))
        before, value = value, float(row.norm())
        if value - before <= ENOUGH * value:
            break
    return value
