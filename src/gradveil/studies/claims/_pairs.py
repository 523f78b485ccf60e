"""Differences between two defenses, paired by batch and seed, from finished cells."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
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


CAPPED_ERROR = "capped_unmatched_mse"
"""Images place by place, as in the paper, each error counted up to that of a blank image."""


def errors_of(results: Results, metric: str, attacker: str | None = None) -> ByDefense:
    """A score of the attacks, by defense; of one attacker where several were run.

    Anybody can answer with a blank image, so an error above that of one protects no better:
    `CAPPED_ERROR` is min(error, error of a blank image), image by image and level by level; curves
    at equal loss join what is capped.
    """
    cells = [pair for pair in select(results, "attack") if attacker in (None, attacker_of(pair[0]))]
    errors = _by_defense(cells, uncapped(metric))
    if metric != CAPPED_ERROR:
        return errors
    blanks = _by_defense(cells, "blank_mse")
    return {
        defense: {unit: torch.minimum(error, blanks[defense][unit]) for unit, error in own.items()}
        for defense, own in errors.items()
    }


def uncapped(metric: str) -> str:
    """The score itself, of one that is capped or not."""
    return "unmatched_mse" if metric == CAPPED_ERROR else metric


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


def mean_value(units: Mapping[Any, Tensor]) -> float:
    """The mean over all values."""
    return float(torch.cat([*units.values()]).mean())


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
