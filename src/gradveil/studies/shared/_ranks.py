"""Rank correlations within groups, with intervals."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

RESAMPLES = 2000


class Runs(NamedTuple):
    """Two values of each run of a group, and what the run was of: its shape of noise, say."""

    first: Tensor
    second: Tensor
    subjects: Sequence[str]


def rank_correlation(first: Tensor, second: Tensor, counts: Tensor | None = None) -> Tensor:
    """Spearman's ρ; tied values share their rank, and NaN if all are tied.

    Args:
        first: One value of each run.
        second: The other.
        counts: How often each run counts; with a leading dimension, one ρ for each of its rows.

    >>> a, b = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 4.0, 3.0])
    >>> round(float(rank_correlation(a, b)), 3)
    0.8
    """
    counts = torch.ones(len(first)).double() if counts is None else counts.double()
    one, other = (_centred(_ranks(x.double(), counts), counts) for x in (first, second))
    sizes = (counts * one.square()).sum(-1) * (counts * other.square()).sum(-1)
    return (counts * one * other).sum(-1) / sizes.sqrt()


def mean_correlation(groups: Sequence[Runs]) -> tuple[float | None, float | None, float | None]:
    """The mean over groups of Spearman's ρ in each, and its 95 % bootstrap interval over subjects.

    Each draw takes as many subjects as there are, with replacement, and all runs of these in every
    group: what is special about one subject shows in all groups, so they are not independent.
    Groups and draws in which all runs are tied do not count.
    """
    if not groups:
        return None, None, None
    mean = torch.stack([rank_correlation(runs.first, runs.second) for runs in groups]).nanmean()
    subjects = sorted({subject for runs in groups for subject in runs.subjects})
    counts = _counts(len(subjects))
    drawn = torch.stack([_drawn(runs, subjects, counts) for runs in groups]).nanmean(0)
    drawn = drawn[drawn.isfinite()]
    if not bool(mean.isfinite()) or not len(drawn):
        return None, None, None
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975], dtype=drawn.dtype)).tolist()
    return float(mean), low, high


def _counts(size: int) -> Tensor:
    """How often each subject is in each draw."""
    chosen = torch.randint(size, (RESAMPLES, size), generator=torch.Generator().manual_seed(0))
    return torch.zeros(RESAMPLES, size).scatter_add_(1, chosen, torch.ones(RESAMPLES, size))


def _drawn(runs: Runs, subjects: Sequence[str], counts: Tensor) -> Tensor:
    places = [subjects.index(subject) for subject in runs.subjects]
    return rank_correlation(runs.first, runs.second, counts[:, places])


def _ranks(x: Tensor, counts: Tensor) -> Tensor:
    """How many are smaller, and half of those that are equal."""
    mine, others = x.unsqueeze(-1), x.unsqueeze(-2)
    return counts @ ((others < mine).double() + 0.5 * (others == mine).double()).mT


def _centred(x: Tensor, counts: Tensor) -> Tensor:
    return x - (counts * x).sum(-1, keepdim=True) / counts.sum(-1, keepdim=True)
