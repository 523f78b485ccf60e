"""From finished cells to means with intervals: what all studies share."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import log
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gradveil._runner import Settings
from gradveil.catalog import DEFENSES, Spec, build_defense
from gradveil.defenses import Defense
from gradveil.scoring import Interval, bootstrap_interval, share_interval

from .study import MEANS, Entry, Results, Table


@lru_cache(maxsize=256)
def defense_of(text: str) -> Defense:
    """The defense of a specification, to be asked what it is; amounts may be left out."""
    return build_defense(Spec.parse(text, "defense").completed())


def is_optimal(text: str) -> bool:
    """Whether it is the optimal form of a classical defense."""
    return defense_of(text).about.twin is not None


def is_pruning(text: str) -> bool:
    """Whether its level is the share of entries that it prunes."""
    return defense_of(text).about.amount == "ratio"


def label_of(name: str) -> str:
    """How figures call a defense; a name that is not registered stays as it is."""
    return defense_of(name).about.label if name in DEFENSES else name


def defense_spec(name: str, level: float | None = None, estimator: str = "auto") -> str:
    """A defense and its level in words; an optimal one plans from the private batch."""
    spec = Spec(name)
    if level is None:
        return str(spec)
    spec = spec.with_(**{"ratio" if is_pruning(name) else "scale": level})
    if not is_optimal(name):
        return str(spec)
    if estimator != "auto":
        spec = spec.with_(estimator=Spec.parse(estimator, "estimator"))
    return str(spec.with_(source="private"))


@lru_cache(maxsize=1024)
def name_and_level(text: str) -> tuple[str, float | None]:
    """The inverse of `defense_spec`; the estimator is left out."""
    spec = Spec.parse(text, "defense")
    amounts = dict(spec.amounts)
    return spec.name, amounts.get("ratio", amounts.get("scale"))


def level_text(name: str, level: float | None) -> str:
    """A defense with its level, for legends.

    >>> level_text("optimal-pruning", 0.8), level_text("clamped-noise", 0.05)
    ('80% optimal pruning', 'noise with clamping, scale 0.05')
    """
    label = label_of(name)
    if level is None:
        return label
    return f"{level * 100:g}% {label}" if is_pruning(name) else f"{label}, scale {level:g}"


Pair = tuple[Settings, Mapping[str, Any]]
Key = TypeVar("Key", bound=tuple[Any, ...] | str)
Defended = tuple[str, float | None]
"""The name of a defense and its level."""

Unit = tuple[int, int]
"""A batch (by its first image) and a seed."""

Units = Mapping[Unit, Tensor]
"""The values of the images of each batch and seed; one value where there are no images."""

CHANCE = log(10)
"""The loss of a guess among ten classes; a run that ends above it has learned nothing."""

Cells = tuple[float | None, float | None, float | None, int]
"""A table's cells `mean`, `low`, `high` and `n`: the ends are empty for a single unit."""


def select(results: Results, kind: str, **where: Any) -> Iterator[Pair]:
    """The finished cells of a kind whose settings are these; what is not set counts as None."""
    for cell, result in results.items():
        if cell.name != kind:
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


def by_defense(results: Results, kind: str) -> dict[Defended, list[Pair]]:
    """The cells of a kind by the name and the level of their defense."""
    return grouped(select(results, kind), lambda s: name_and_level(s["defense"]))


def in_order(groups: Iterable[Any]) -> list[Any]:
    """Keys of words and numbers in their order; a missing level counts as 0."""
    return sorted(groups, key=lambda key: tuple(part or 0.0 for part in key))


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


def independent(units: Units) -> list[list[Tensor]]:
    """The same, but each seed alone where there is one batch: then seeds are all that varies."""
    groups = nested(units)
    return [[values] for values in groups[0]] if len(groups) == 1 else groups


def summary(units: Units) -> Cells:
    """The mean over batches, seeds and images, its 95 % interval, and the number of units."""
    if not units:
        return None, None, None, 0
    groups = independent(units)
    of_mean = interval(groups)
    if len(groups) == 1:
        return of_mean.mean, None, None, 1
    return of_mean.mean, of_mean.low, of_mean.high, len(units)


def interval(groups: list[list[Tensor]]) -> Interval:
    """The 95 % interval of the mean over groups, always from the same draws."""
    return bootstrap_interval(groups, generator=torch.Generator().manual_seed(0))


def summarise(pairs: Iterable[Pair], value: str) -> Cells:
    """The summary of one value of some cells."""
    return summary(units_of(pairs, value))


def score_table(
    columns: Sequence[str], cells: Mapping[Key, list[Pair]], scores: Iterable[str]
) -> Table:
    """A row for each score and key, whose entries have these columns: its mean with an interval."""
    rows = [
        (*key, score, *summarise(cells[key], score)) for score in scores for key in in_order(cells)
    ]
    return Table((*columns, "metric", *MEANS), rows)


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


def final_losses(pairs: Iterable[Pair], last: int = 8) -> dict[Unit, Tensor]:
    """The clients' mean loss over the last rounds of each training, by seed; 0 stands for all."""
    return {
        (0, settings["seed"]): torch.tensor(result["losses"][-last:], dtype=torch.float64)
        .mean()
        .view(1)
        for settings, result in pairs
    }


def number(entry: Entry) -> float:
    """An entry of a table as a number; NaN, which is not drawn, where there is none."""
    return float("nan") if entry is None else float(entry)


RESAMPLES = 2000


class Runs(NamedTuple):
    """Two values of each run of a group, and what the run was of: its shape of noise, say."""

    first: Tensor
    second: Tensor
    subjects: Sequence[str]


def rank_correlation(first: Tensor, second: Tensor, counts: Tensor | None = None) -> Tensor:
    """Spearman's ρ of two values of each run; tied ones share their rank, NaN if all are tied.

    Counts say how often each run counts; with a leading dimension, one ρ for each of its rows.
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
    size = len(subjects)
    chosen = torch.randint(size, (RESAMPLES, size), generator=torch.Generator().manual_seed(0))
    counts = one_hot(chosen, size).sum(1)  # how often each subject is in each draw
    each = [
        rank_correlation(runs.first, runs.second, counts[:, [*map(subjects.index, runs.subjects)]])
        for runs in groups
    ]
    drawn = torch.stack(each).nanmean(0)
    drawn = drawn[drawn.isfinite()]
    if not bool(mean.isfinite()) or not len(drawn):
        return None, None, None
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975], dtype=drawn.dtype)).tolist()
    return float(mean), low, high


def _ranks(x: Tensor, counts: Tensor) -> Tensor:
    """How many are smaller, and half of those that are equal."""
    mine, others = x.unsqueeze(-1), x.unsqueeze(-2)
    return counts @ ((others < mine).double() + 0.5 * (others == mine).double()).mT


def _centred(x: Tensor, counts: Tensor) -> Tensor:
    return x - (counts * x).sum(-1, keepdim=True) / counts.sum(-1, keepdim=True)
