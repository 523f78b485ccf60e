"""Noise levels: the ratios √(E‖∇g_i‖² / E g_i²) of optimal noise, with limits; selection."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gradveil._checks import check_at_most, check_choice, check_not_negative, check_positive
from gradveil._typing import Tensors
from gradveil.sensitivity import Moments
from gradveil.shapes import Shape

GRANULARITIES = ("parameter", "layer")

PIECE = 2**16
"""Entries for which ratios are computed at a time."""


def check_shape_options(granularity: str, cap: float, floor: float) -> None:
    """Require options that make sense."""
    check_choice(granularity, "granularity", GRANULARITIES)
    check_positive(cap, "cap", finite=False)
    check_not_negative(floor, "floor")
    check_at_most(floor, "floor")


def sensitivity_shape(moments: Moments, granularity: str, floor: float) -> Shape:
    """r_i = √E‖∇g_i‖² / √E g_i²; 0 where s_i is 0.

    The denominator is at least `floor` times the root mean square of the entry's tensor, which is
    relative, so that the units of inputs, weights and loss change nothing. For granularity "layer"
    the means over each tensor take the place of the entries: one level for each tensor, which is
    the optimum among such shapes.
    """
    slopes, ratios = moments.known_squared_sensitivities, {}
    for name, squares in moments.squared_values.items():
        slope = slopes[name]
        if granularity == "layer":
            slope, squares = slope.mean(), squares.mean()
        ratios[name] = (_ratio(slope, squares, least_square(squares, floor)),)
    return Shape(ratios, silent=True)


def per_layer(levels: Tensors, weights: Mapping[str, Tensor]) -> Tensors:
    """One level for each tensor: √(Σ r_i² w_i / Σ w_i)."""
    return {name: _root_mean(level, weights[name]) for name, level in levels.items()}


def _root_mean(level: Tensor, weight: Tensor) -> Tensor:
    if not level.numel() or not any(level.stride()):  # one number, expanded: it stays one
        return level
    whole = weight.sum(dtype=torch.float64)
    weight = weight if float(whole) > 0 else torch.ones_like(weight)
    mean = (level.square() * weight).sum(dtype=torch.float64) / weight.sum(dtype=torch.float64)
    return mean.sqrt().to(level.dtype).expand(level.shape)


def capped(levels: Tensors, cap: float) -> Tensors:
    """At most `cap` times the median of all. The given dict is used up, which spares memory."""
    limit = cap * typical(levels)
    most = {n: min(limit, torch.finfo(r.dtype).max) for n, r in levels.items()}
    return {name: levels.pop(name).clamp(max=most[name]) for name in most}


def least_square(squares: Tensor, floor: float) -> float:
    """The least E g_i² that counts: floor² times the mean over the tensor, and no 0."""
    mean = float(squares.detach().mean(dtype=torch.float64)) if squares.numel() else 0.0
    return max(floor**2 * mean, torch.finfo(squares.dtype).tiny)


def _ratio(sensitivity: Tensor, square: Tensor, least: float) -> Tensor:
    """Large tensors piece by piece, so that what is computed on the way takes little memory."""
    if sensitivity.numel() <= 4 * PIECE or sensitivity.requires_grad:
        return _ratio_of_piece(sensitivity, square, least)
    ratio = torch.empty_like(sensitivity, memory_format=torch.contiguous_format)
    pieces = zip(
        ratio.view(-1).split(PIECE),
        sensitivity.reshape(-1).split(PIECE),
        square.reshape(-1).split(PIECE),
        strict=True,
    )
    for target, slopes, squares in pieces:
        target.copy_(_ratio_of_piece(slopes, squares, least))
    return ratio


def _ratio_of_piece(sensitivity: Tensor, square: Tensor, least: float) -> Tensor:
    """Roots before the quotient: no square overflows. No root of 0: its slope is infinite."""
    limits = torch.finfo(square.dtype)
    value = square.clamp(min=least).sqrt()
    ratio = (sensitivity.clamp(min=limits.tiny).sqrt() / value).clamp(max=limits.max)
    return ratio * sensitivity.sign()


MEDIAN_OF = 2**10
"""At most about so many entries of a tensor, evenly spread, stand for all in a median."""

ACROSS = 1 / 25
"""The floor over all tensors, as a share of the one inside each: tensors may differ by much."""


def raise_to_least(levels: Tensors, least: float) -> Tensors:
    """Variances with a floor: no entry is sent (nearly) bare. The given dict is used up.

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
    return {n: _raised(levels.pop(n), least, middle, least_of_all) for n in [*levels]}


def typical(levels: Mapping[str, Tensor]) -> float:
    """The median of all positive levels; infinite where there is none."""
    size = sum(level.numel() for level in levels.values())
    spread = max(1, size // MEDIAN_OF)
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
    sample = row[:: max(1, len(row) // MEDIAN_OF)]
    positive = sample[sample > 0]
    if not len(positive):
        positive = row[row > 0]
    return float(positive.median()) if len(positive) else 0.0


def keep_lowest(scores: Tensor, count: int, ties: Tensor | None = None) -> Tensor:
    """1 for the `count` lowest scores, 0 elsewhere.

    Of equal scores the entries of the lowest `ties` are kept, where there are any, and then the
    earlier ones. One selection instead of a sort: everything below the count-th score, then ties.
    """
    if count == 0:
        return torch.zeros_like(scores)
    threshold = scores.kthvalue(count).values
    below, tied = scores < threshold, scores == threshold
    missing = count - int(below.sum())
    if ties is None or int(tied.sum()) == missing:
        return (below | (tied & (tied.cumsum(0) <= missing))).to(scores.dtype)
    kept = below.to(scores.dtype)
    kept[tied] = keep_lowest(ties[tied], missing).to(scores.dtype)
    return kept


def in_order(scores: Tensor, ties: Tensor | None = None) -> Tensor:
    """The entries by rising scores; of equal ones those of the lowest `ties` first."""
    if ties is None:
        return scores.argsort(stable=True)
    first = ties.argsort(stable=True)
    return first[scores[first].argsort(stable=True)]


def keep_within(
    scores: Tensor, weights: Tensor, budget: float, ties: Tensor | None = None
) -> Tensor:
    """Keep in the order of rising scores until Σ weights · keep = budget.

    The fractional knapsack: the entry on the borderline is kept with the probability that meets
    the budget in expectation.

    >>> keep_within(torch.tensor([2.0, 1.0, 3.0]), torch.ones(3), budget=1.5)
    tensor([0.5000, 1.0000, 0.0000])
    """
    order = in_order(scores, ties)
    sorted_weights = weights[order].double()
    before = sorted_weights.cumsum(0) - sorted_weights
    share = ((budget - before) / sorted_weights.clamp(min=1e-300)).clamp(0, 1)
    share = torch.where(sorted_weights > 0, share, 0.0)
    return torch.empty_like(scores).scatter_(0, order, share.to(scores.dtype))
