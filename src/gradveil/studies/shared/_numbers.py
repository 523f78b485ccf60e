"""From finished cells to means with intervals: what all studies share."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import log
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradveil.scoring import Interval, bootstrap_interval, share_interval
from gradveil.studies.runner import Cell, Entry, Result, Results, Settings

Pair = tuple[Settings, Result]
Key = TypeVar("Key")

Unit = tuple[int, int]
"""A batch (by its first image) and a seed."""

Units = Mapping[Unit, Tensor]
"""The values of the images of each batch and seed; one value where there are no images."""

OF_PHOTOS = "photo-"
"""What kinds of cells on official photos begin with."""

CHANCE = log(10)
"""The loss of a guess among ten classes; a run that ends above it has learned nothing."""

LAST = 8
"""Rounds whose mean is the loss at the end of a training."""

Cells = tuple[float | None, float | None, float | None, int]
"""A table's cells `mean`, `low`, `high` and `n`: the ends are empty for a single unit."""


def select(results: Results, kind: str, **where: Any) -> Iterator[Pair]:
    """The finished cells of a kind whose settings are these; what is not set counts as None."""
    for cell, result in results.items():
        if cell.kind != kind:
            continue
        settings = cell.settings
        if all(settings.get(name) == value for name, value in where.items()):
            yield settings, result


def plain_kinds(results: Results) -> Results:
    """The results with cells of photos as the attacks and trainings that they are."""
    return {
        Cell(cell.kind.removeprefix(OF_PHOTOS), cell.settings): found
        for cell, found in results.items()
    }


def grouped(pairs: Iterable[Pair], key: Callable[[Settings], Key]) -> dict[Key, list[Pair]]:
    """The cells by a key made from their settings, in their order."""
    groups: dict[Key, list[Pair]] = {}
    for settings, result in pairs:
        groups.setdefault(key(settings), []).append((settings, result))
    return groups


def units_of(pairs: Iterable[Pair], value: str) -> dict[Unit, Tensor]:
    """One value of each cell's result, by batch and seed."""
    units: dict[Unit, Tensor] = {}
    for settings, result in pairs:
        unit = (settings.get("start", 0), settings.get("seed", 0))
        if unit in units:
            raise ValueError(
                "Parameter `pairs` should hold one cell for each batch and seed. Found two for the"
                f" batch at {unit[0]} with seed {unit[1]}. Group the cells first."
            )
        units[unit] = torch.tensor(result[value], dtype=torch.float64).view(-1)
    return units


def nested(units: Units) -> list[list[Tensor]]:
    """Batches of seeds of images, as the bootstrap draws them."""
    starts = sorted({start for start, _ in units})
    return [[units[unit] for unit in sorted(units) if unit[0] == start] for start in starts]


def summary(units: Units) -> Cells:
    """The mean over batches, seeds and images, its 95 % interval, and the number of units."""
    if not units:
        return None, None, None, 0
    groups = nested(units)
    if len(groups) == 1:  # seeds of one batch are all that varies
        groups = [[values] for values in groups[0]]
    mean_interval = interval(groups)
    if len(groups) == 1:
        return mean_interval.mean, None, None, 1
    return mean_interval.mean, mean_interval.low, mean_interval.high, len(units)


def interval(groups: list[list[Tensor]]) -> Interval:
    """The 95 % interval of the mean over groups, always from the same draws."""
    return bootstrap_interval(groups, generator=torch.Generator().manual_seed(0))


def summarise(pairs: Iterable[Pair], value: str) -> Cells:
    """The summary of one value of some cells."""
    return summary(units_of(pairs, value))


def right_share(pairs: Iterable[Pair]) -> Cells:
    """The share of trials with the right candidate, its interval, and the number of trials.

    Trials of one draw of candidates are not independent, so the interval holds both that of
    Clopper and Pearson over all trials and that of the draws' shares.
    """
    pairs = [*pairs]
    right = [one for _, result in pairs for one in result["right"]]
    if not right:
        return None, None, None, 0
    of_trials, (_, low, high, _) = share_interval(sum(right), len(right)), summarise(pairs, "right")
    low = of_trials.low if low is None else max(0.0, min(low, of_trials.low))
    high = of_trials.high if high is None else min(1.0, max(high, of_trials.high))
    return of_trials.mean, low, high, len(right)


def summarise_loss(pairs: Iterable[Pair]) -> Cells:
    """The loss after short trainings, with an interval free of what seeds differ in beforehand.

    Each seed starts from weights of its own, and so from a loss of its own, whatever the defense:
    its distance to the mean of these is taken off first, which leaves the mean as it is.
    """
    pairs = [*pairs]
    before, after = units_of(pairs, "before"), units_of(pairs, "after")
    start = torch.cat([*before.values()]).mean() if before else torch.zeros(())
    return summary({unit: after[unit] - before[unit] + start for unit in after})


def final_losses(pairs: Iterable[Pair]) -> dict[Unit, Tensor]:
    """The clients' mean loss over the last rounds of each training, by seed."""
    return {
        (0, settings["seed"]): torch.tensor(result["losses"][-LAST:], dtype=torch.float64)
        .mean()
        .view(1)
        for settings, result in pairs
    }


def number(entry: Entry) -> float:
    """An entry of a table as a number; NaN, which is not drawn, where there is none."""
    return float("nan") if entry is None else float(entry)
