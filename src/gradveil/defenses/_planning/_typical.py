"""Typical noise levels, and a floor under every level."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gradveil._typing import Tensors

SAMPLE = 2**10
"""At most about so many entries of a tensor, evenly spread, stand for all in a median."""

ACROSS = 1 / 25
"""The floor over all tensors, as a share of the one inside each: tensors may differ by much."""


def raise_to_least(levels: Mapping[str, Tensor], least: float) -> Tensors:
    """Variances with a floor: no entry is sent (nearly) bare.

    An entry of level 0 gets the mean level of its tensor, so that it looks like the others: no
    sensitivity or no value on this batch (an unused row, a dead unit, a clamped entry) is
    information, too. All others get at least least² times the median of their tensor, and
    (least/25)² times the median of the message: a path that autograd hardly sees must not leave a
    whole tensor next to bare. Where a whole tensor has level 0, the median of the message stands
    for its mean; where all have, 1 does.
    """
    middle = typical(levels)
    middle = middle if middle < torch.inf else 1.0
    least_of_all = (ACROSS * least) ** 2 * middle
    return {name: _raised(level, least, middle, least_of_all) for name, level in levels.items()}


def typical(levels: Mapping[str, Tensor]) -> float:
    """The median of all positive levels; infinite where there is none."""
    size = sum(level.numel() for level in levels.values())
    spread = max(1, size // SAMPLE)
    sample = torch.cat([level.detach().reshape(-1)[::spread] for level in levels.values()])
    positive = sample[sample > 0]
    if not len(positive):
        rows = [level.detach().reshape(-1) for level in levels.values()]
        positive = torch.cat([row[row > 0] for row in rows])
    return float(positive.median()) if len(positive) else torch.inf


def _raised(level: Tensor, least: float, middle: float, least_of_all: float) -> Tensor:
    if level.numel() and not any(level.stride()):  # one number, expanded: it stays one
        number = level.as_strided((), ())
        filled = torch.where(number > 0, number.clamp(min=least_of_all), middle)
        return filled.expand(level.shape)
    floor = max(least**2 * median_level(level), least_of_all)
    lowest = float(level.detach().min()) if level.numel() else torch.inf
    if lowest > 0:
        return level if lowest >= floor else level.clamp(min=floor)
    positive = level > 0
    count = positive.sum()
    mean = torch.where(count > 0, level.sum() / count.clamp(min=1), middle)
    return torch.where(positive, level.clamp(min=floor), mean)


def median_level(level: Tensor) -> float:
    """The median of the positive entries; 0 where there is none."""
    row = level.detach().reshape(-1)
    sample = row[:: max(1, len(row) // SAMPLE)]
    positive = sample[sample > 0]
    if not len(positive):
        positive = row[row > 0]
    return float(positive.median()) if len(positive) else 0.0
