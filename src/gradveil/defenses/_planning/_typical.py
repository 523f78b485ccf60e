"""Median noise levels, and a floor under every level."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gradveil._typing import Tensors

SAMPLE = 2**10
"""At most about so many entries of a tensor, evenly spread, stand for all in a median."""


def raise_to_least(levels: Mapping[str, Tensor], least: float) -> Tensors:
    """Variances with a floor: no entry is sent (nearly) bare.

    An entry of level 0 gets the median level of its tensor, so that it looks like the others: a
    sensitivity of 0 on this batch (an unused row, a dead unit, a clamped entry) is information,
    too. All others get at least least² times that median. Where a whole tensor has level 0, the
    median of the other tensors' medians stands for its own; where all have, 1 does.
    """
    medians = {name: _median(level) for name, level in levels.items()}
    positive = [median for median in medians.values() if float(median) > 0]
    other = float(torch.stack(positive).median()) if positive else 1.0
    return {name: _raised(level, medians[name], other, least) for name, level in levels.items()}


def typical(levels: Mapping[str, Tensor]) -> float:
    """The median of all positive levels; infinite where there is none."""
    size = sum(level.numel() for level in levels.values())
    spread = max(1, size // SAMPLE)
    sample = torch.cat([level.detach().reshape(-1)[::spread] for level in levels.values()])
    positive = sample[sample > 0]
    return float(positive.median()) if len(positive) else torch.inf


def _raised(level: Tensor, median: Tensor, other: float, least: float) -> Tensor:
    middle = median if float(median) > 0 else torch.full_like(median, other)
    if not any(level.stride()):  # one number, expanded: it stays one
        return torch.where(level.as_strided((), ()) > 0, median, middle).expand(level.shape)
    lowest = float(level.detach().min()) if level.numel() else torch.inf
    if lowest > 0:
        return level if lowest >= least**2 * float(middle) else level.clamp(min=least**2 * middle)
    return torch.where(level > 0, torch.maximum(level, least**2 * middle), middle)


def _median(level: Tensor) -> Tensor:
    """The median of the positive entries; 0 where there is none."""
    row = level.reshape(-1)
    sample = row[:: max(1, len(row) // SAMPLE)]
    positive = sample[sample > 0]
    if not len(positive):
        positive = row[row > 0]
    return positive.median() if len(positive) else row.new_zeros(())
