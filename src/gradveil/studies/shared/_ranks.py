"""Rank correlations within groups, with intervals."""

import torch
from torch import Tensor

RESAMPLES = 2000

Points = tuple[Tensor, Tensor]
"""Two values of each run of a group."""


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's ρ along the last dimension; tied values share their rank, and NaN if all are tied.

    >>> a, b = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 4.0, 3.0])
    >>> round(float(rank_correlation(a, b)), 3)
    0.8
    """
    one, other = (_centred(_ranks(x.double())) for x in (first, second))
    sizes = one.square().sum(-1) * other.square().sum(-1)
    return (one * other).sum(-1) / sizes.sqrt()


def mean_correlation(groups: list[Points]) -> tuple[float | None, float | None, float | None]:
    """The mean over groups of Spearman's ρ in each, and its 95 % bootstrap interval over runs.

    Each draw takes as many runs of every group as it has, with replacement. Groups and draws in
    which all runs are tied do not count.
    """
    if not groups:
        return None, None, None
    mean = torch.stack([rank_correlation(*points) for points in groups]).nanmean()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([_drawn(points, generator) for points in groups]).nanmean(0)
    drawn = drawn[drawn.isfinite()]
    if not bool(mean.isfinite()) or not len(drawn):
        return None, None, None
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975], dtype=drawn.dtype)).tolist()
    return float(mean), low, high


def _drawn(points: Points, generator: torch.Generator) -> Tensor:
    size = len(points[0])
    chosen = torch.randint(size, (RESAMPLES, size), generator=generator)
    return rank_correlation(points[0][chosen], points[1][chosen])


def _ranks(x: Tensor) -> Tensor:
    """How many are smaller, and half of those that are equal."""
    mine, others = x.unsqueeze(-1), x.unsqueeze(-2)
    return (others < mine).double().sum(-1) + 0.5 * (others == mine).double().sum(-1)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)
