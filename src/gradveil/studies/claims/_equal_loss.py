"""Two defenses compared where both train equally well."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradveil.studies.shared import CHANCE, Unit, Units

from ._pairs import ByDefense, Defense, mean_value

LEAST_OVERLAP = 1 / 3
"""Of the shorter curve's losses: two curves that share less are not compared."""
POINTS = 33
"""At how many losses two trade-off curves are compared."""

LEARNED = 0.1
"""Of what a training without a defense gains over a guess: less counts as nothing learned."""


class EqualLoss(NamedTuple):
    """Differences where both train equally well, and what the losses' seeds leave open."""

    units: Units
    """Of each batch, at losses that are means over seeds."""
    half_width: float
    """Of the 95 % interval of their mean, as far as it comes from these losses; infinite where one
    seed alone, or one of several, decides."""


def learned_below(losses: ByDefense) -> float:
    """The loss above which a training has learned nothing to speak of.

    ln 10 less a tenth of what the training without a defense gains; ln 10 where there is none.
    """
    undefended = losses.get(("no-defense", None))
    loss = mean_value(undefended) if undefended else math.nan
    return CHANCE - LEARNED * max(0.0, CHANCE - loss) if math.isfinite(loss) else CHANCE


def at_equal_loss(
    errors: ByDefense, losses: ByDefense, first: str, second: str, ceiling: float = math.inf
) -> EqualLoss:
    """The error of first - second where both train equally well, at losses below a ceiling.

    Each defense's levels make a curve of (mean loss, error of a batch); the curves are compared by
    linear interpolation at losses that both reach, less than a third of the shorter curve being too
    few. So curves count as straight between levels. Levels above the ceiling are left out.
    Losses are means over the seeds that all levels have, because a seed shifts all levels alike.
    What these seeds leave open comes from leaving out one after the other: Student's quantile times
    √((n-1)/n Σ (D₋ₛ - D̄)²), the jackknife's standard error of the mean difference D.
    """
    curves = _Curves(errors, losses, first, second, ceiling)
    units = curves.differences(curves.seeds)
    left = [curves.differences([s for s in curves.seeds if s != seed]) for seed in curves.seeds]
    if len(left) < 2 or not all(left):
        return EqualLoss(units, math.inf)
    return EqualLoss(units, _jackknife([mean_value(each) for each in left]))


class _Curves(NamedTuple):
    """The levels of two defenses as curves of errors over losses."""

    errors: ByDefense
    losses: ByDefense
    first: str
    second: str
    ceiling: float

    @property
    def seeds(self) -> list[Unit]:
        """Which all levels have."""
        levels = [d for name in (self.first, self.second) for d in self._levels(name)]
        used = [set(self.losses[d]) for d in levels]
        return sorted(set.intersection(*used)) if used else []

    def differences(self, seeds: Sequence[Unit]) -> dict[Unit, Tensor]:
        """Of each batch, at losses that are means over these seeds."""
        curves = [self._curve(name, seeds) for name in (self.first, self.second)]
        if not seeds or any(len(levels) < 2 for levels, _ in curves):
            return {}
        ranges = [(min(x), max(x)) for _, x in curves]
        low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
        if high <= low or high - low < LEAST_OVERLAP * min(b - a for a, b in ranges):
            return {}
        grid = np.linspace(low, high, POINTS)
        (ours, x), (theirs, z) = curves
        units = set.intersection(*(set(self.errors[d]) for d in (*ours, *theirs)))
        return {
            unit: _along([self.errors[d][unit] for d in ours], x, grid)
            - _along([self.errors[d][unit] for d in theirs], z, grid)
            for unit in sorted(units)
        }

    def _levels(self, name: str) -> list[Defense]:
        named = [d for d in self.errors if d[0] == name and d[1] is not None]
        return [d for d in named if self.losses.get(d)]

    def _curve(self, name: str, seeds: Sequence[Unit]) -> tuple[list[Defense], list[float]]:
        """The levels of a defense that learned, in the order of their mean losses, and these."""
        levels = self._levels(name) if seeds else []
        means = {d: mean_value({s: self.losses[d][s] for s in seeds}) for d in levels}
        learned = [d for d in levels if math.isfinite(means[d]) and means[d] < self.ceiling]
        order = sorted(learned, key=lambda d: (means[d], d[1] or 0.0))
        return order, [means[d] for d in order]


def _along(values: list[Tensor], x: list[float], grid: NDArray[np.floating[Any]]) -> Tensor:
    """The mean over the grid of each image's error, interpolated between the levels."""
    table = torch.stack(values).numpy()
    means = [np.interp(grid, x, table[:, image]).mean() for image in range(table.shape[1])]
    return torch.tensor(means, dtype=torch.float64)


def _jackknife(left_out: Sequence[float]) -> float:
    """Half of a 95 % interval, from the values with one seed left out each."""
    from scipy.stats import t

    count = len(left_out)
    scatter = sum((value - sum(left_out) / count) ** 2 for value in left_out)
    return float(t.ppf(0.975, count - 1)) * math.sqrt((count - 1) / count * scatter)
