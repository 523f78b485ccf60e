"""From finished cells to means with intervals: what all studies share."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from scipy.stats import norm as normal
from scipy.stats import t as student
from torch import Tensor

from gradveil.attacks import Interval, bootstrap_interval
from gradveil.studies.runner import Entry, Result, Results, Settings

Pair = tuple[Settings, Result]
Key = TypeVar("Key")

Unit = tuple[int, int]
"""A batch (by its first image) and a seed."""

Units = Mapping[Unit, Tensor]
"""The values of the images of each batch and seed; one value where there are no images."""


class Summary(NamedTuple):
    """A mean with its 95 % interval over batches and seeds; no interval for a single one."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


def select(results: Results, kind: str, **where: Any) -> Iterator[Pair]:
    """The finished cells of a kind whose settings are these; what is not set counts as None."""
    for cell, result in results.items():
        if cell.kind != kind:
            continue
        settings = cell.settings
        if all(settings.get(name) == value for name, value in where.items()):
            yield settings, result


def grouped(pairs: Iterable[Pair], key: Callable[[Settings], Key]) -> dict[Key, list[Pair]]:
    """The cells by a key made from their settings, in their order."""
    groups: dict[Key, list[Pair]] = {}
    for settings, result in pairs:
        groups.setdefault(key(settings), []).append((settings, result))
    return groups


def units_of(pairs: Iterable[Pair], value: str) -> dict[Unit, Tensor]:
    """What cells found, by batch and seed."""
    found: dict[Unit, Tensor] = {}
    for settings, result in pairs:
        unit = (settings.get("start", 0), settings.get("seed", 0))
        if unit in found:
            raise ValueError(
                "Parameter `pairs` should hold one cell for each batch and seed. Found two for the"
                f" batch at {unit[0]} with seed {unit[1]}. Group the cells first."
            )
        found[unit] = torch.tensor(result[value], dtype=torch.float64).view(-1)
    return found


def nested(units: Units) -> list[list[Tensor]]:
    """Batches of seeds of images, as the bootstrap draws them."""
    starts = sorted({start for start, _ in units})
    return [[units[unit] for unit in sorted(units) if unit[0] == start] for start in starts]


def summary(units: Units) -> Summary:
    """The mean over batches, seeds and images, and the bootstrap's interval."""
    if not units:
        return Summary(None, None, None, 0)
    groups = nested(units)
    if len(groups) == 1:  # seeds of one batch are all that varies
        groups = [[values] for values in groups[0]]
    mean = float(torch.stack([torch.stack([v.mean() for v in g]).mean() for g in groups]).mean())
    if len(groups) == 1:
        return Summary(mean, None, None, 1)
    found = interval(groups)
    return Summary(found.mean, found.low, found.high, len(units))


def interval(groups: list[list[Tensor]]) -> Interval:
    """The 95 % bootstrap interval of the mean over groups, right for few of them.

    A percentile interval of n groups takes the normal quantile and a variance over n: of 6 groups
    it covers 85 %. Its tails are therefore Φ(-√(n/(n-1)) t), t being Student's quantile for n - 1
    degrees of freedom (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015).
    """
    n = len(groups)
    quantile = math.sqrt(n / (n - 1)) * float(student.ppf(0.975, n - 1))
    generator = torch.Generator().manual_seed(0)
    level = min(1 - 2 * float(normal.sf(quantile)), 0.999)  # two or three groups: nearly all draws
    return bootstrap_interval(groups, level=level, resamples=4000, generator=generator)


def summarise(pairs: Iterable[Pair], value: str) -> Summary:
    """The summary of one value of some cells."""
    return summary(units_of(pairs, value))


def summarise_loss(pairs: Iterable[Pair]) -> Summary:
    """The loss after short trainings, with an interval free of what seeds differ in beforehand.

    Each seed starts from weights of its own, and so from a loss of its own, whatever the defense:
    its distance to the mean of these is taken off first, which leaves the mean as it is.
    """
    pairs = [*pairs]
    before, after = units_of(pairs, "before"), units_of(pairs, "after")
    start = torch.cat([*before.values()]).mean() if before else torch.zeros(())
    return summary({unit: after[unit] - before[unit] + start for unit in after})


def number(entry: Entry) -> float:
    """An entry of a table as a number; NaN, which is not drawn, where there is none."""
    return float("nan") if entry is None else float(entry)
