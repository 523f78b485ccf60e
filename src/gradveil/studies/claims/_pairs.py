"""Differences between two defenses, paired by batch and seed, from finished cells."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradveil.studies.runner import Results
from gradveil.studies.shared import (
    Pair,
    Unit,
    Units,
    attacker_of,
    final_losses,
    grouped,
    name_and_level,
    select,
    units_of,
)

Defense = tuple[str, float | None]
ByDefense = Mapping[Defense, Units]
"""The measured values of each defense and level."""

LEAST_OVERLAP = 1 / 3
POINTS = 33
"""At how many losses two trade-off curves are compared."""


def errors_of(results: Results, metric: str, attacker: str | None = None) -> ByDefense:
    """A score of the attacks, by defense; of one attacker where several were run."""
    cells: Iterable[Pair] = select(results, "attack")
    if attacker is not None:
        cells = [pair for pair in cells if attacker_of(pair[0]) == attacker]
    return _by_defense(cells, metric)


def losses_of(results: Results) -> ByDefense:
    """The loss after the short trainings, by defense."""
    return _by_defense(select(results, "short-training"), "after")


def final_losses_of(results: Results) -> ByDefense:
    """The loss at the end of the training runs, by defense."""
    runs = grouped(select(results, "training"), lambda s: name_and_level(s["defense"]))
    return {defense: final_losses(pairs) for defense, pairs in runs.items()}


def mean_losses_of(results: Results) -> ByDefense:
    """The mean loss over the rounds of the training runs, by defense: the less, the faster."""
    runs = grouped(select(results, "training"), lambda s: name_and_level(s["defense"]))
    return {
        defense: {
            (0, s["seed"]): torch.tensor(r["losses"], dtype=torch.float64).mean().view(1)
            for s, r in pairs
        }
        for defense, pairs in runs.items()
    }


def difference(measured: ByDefense, first: Defense, second: Defense) -> dict[Unit, Tensor]:
    """first - second on the batches and seeds that both have."""
    ours, theirs = measured.get(first, {}), measured.get(second, {})
    return {
        unit: ours[unit] - theirs[unit]
        for unit in ours
        if unit in theirs and ours[unit].shape == theirs[unit].shape
    }


def at_equal_level(
    measured: ByDefense, first: str, second: str, low: float = 0.0, high: float = float("inf")
) -> dict[Unit, Tensor]:
    """first - second at the same level, averaged over the levels in (low, high] both have."""
    levels = [level for name, level in measured if name == first and level is not None]
    each = [
        difference(measured, (first, level), (second, level))
        for level in levels
        if low < level <= high
    ]
    return mean_of(each)


def at_equal_loss(
    errors: ByDefense, losses: ByDefense, first: str, second: str
) -> dict[Unit, Tensor]:
    """The error of first - second where both train equally well.

    Each defense's levels make a curve of (mean loss, error of a batch); the curves are compared by
    linear interpolation at losses that both reach. Empty where these are few: less than a third of
    the shorter curve. Losses are means over the seeds that all levels have, because a seed shifts
    all levels alike; what scatter is left in them counts as known.
    """
    losses = _of_shared_seeds(errors, losses, (first, second))
    curves = [_curve(errors, losses, name) for name in (first, second)]
    if any(len(levels) < 2 for levels, _ in curves):
        return {}
    low = max(min(x) for _, x in curves)
    high = min(max(x) for _, x in curves)
    if high - low < LEAST_OVERLAP * min(max(x) - min(x) for _, x in curves):
        return {}
    grid = np.linspace(low, high, POINTS)
    (ours, x), (theirs, z) = curves
    units = set.intersection(*(set(errors[d]) for d in (*ours, *theirs)))
    return {
        unit: _along([errors[d][unit] for d in ours], x, grid)
        - _along([errors[d][unit] for d in theirs], z, grid)
        for unit in sorted(units)
    }


def negated(units: Units) -> dict[Unit, Tensor]:
    """For claims that something is lower."""
    return {unit: -values for unit, values in units.items()}


def mean_of(each: Iterable[Units]) -> dict[Unit, Tensor]:
    """The mean over several levels, for each batch and seed that all of them have."""
    each = [units for units in each if units]
    if not each:
        return {}
    common = set.intersection(*(set(units) for units in each))
    return {unit: torch.stack([units[unit] for units in each]).mean(0) for unit in sorted(common)}


def _by_defense(pairs: Iterable[Pair], value: str) -> ByDefense:
    groups = grouped(pairs, lambda s: name_and_level(s["defense"]))
    return {defense: units_of(cells, value) for defense, cells in groups.items()}


def _of_shared_seeds(errors: ByDefense, losses: ByDefense, names: Sequence[str]) -> ByDefense:
    used = [losses[d] for d in errors if d[0] in names and d[1] is not None and losses.get(d)]
    shared = set.intersection(*map(set, used)) if used else set()
    return {d: {u: v for u, v in own.items() if u in shared} for d, own in losses.items()}


def _curve(errors: ByDefense, losses: ByDefense, name: str) -> tuple[list[Defense], list[float]]:
    """The levels of a defense in the order of their mean losses, and these."""
    means = {
        d: float(torch.cat([*losses[d].values()]).mean())
        for d in errors
        if d[0] == name and d[1] is not None and losses.get(d)
    }
    order = sorted(means, key=lambda d: means[d])
    return order, [means[d] for d in order]


def _along(values: list[Tensor], x: list[float], grid: NDArray[np.floating[Any]]) -> Tensor:
    """The mean over the grid of each image's error, interpolated between the levels."""
    table = torch.stack(values).numpy()
    means = [np.interp(grid, x, table[:, image]).mean() for image in range(table.shape[1])]
    return torch.tensor(means, dtype=torch.float64)
