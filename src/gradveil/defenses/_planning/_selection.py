"""Selection of the entries to keep, by rank or up to a budget."""

import torch
from torch import Tensor


def keep_lowest(scores: Tensor, count: int) -> Tensor:
    """1 for the `count` lowest scores, 0 elsewhere; of equal scores the earlier entry is kept.

    One selection instead of a sort: everything below the count-th score, then ties in order.
    """
    if count == 0:
        return torch.zeros_like(scores)
    threshold = scores.kthvalue(count).values
    below, tied = scores < threshold, scores == threshold
    missing = count - below.sum()
    return (below | (tied & (tied.cumsum(0) <= missing))).to(scores.dtype)


def keep_within(scores: Tensor, weights: Tensor, budget: float) -> Tensor:
    """Keep in the order of rising scores until Σ weights · keep = budget.

    The fractional knapsack: the entry on the borderline is kept with the probability that meets
    the budget in expectation.

    >>> keep_within(torch.tensor([2.0, 1.0, 3.0]), torch.ones(3), budget=1.5)
    tensor([0.5000, 1.0000, 0.0000])
    """
    order = scores.argsort(stable=True)
    sorted_weights = weights[order].double()
    before = sorted_weights.cumsum(0) - sorted_weights
    share = ((budget - before) / sorted_weights.clamp(min=1e-300)).clamp(0, 1)
    share = torch.where(sorted_weights > 0, share, 0.0)
    return torch.empty_like(scores).scatter_(0, order, share.to(scores.dtype))
