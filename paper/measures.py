"""How the differences that a claim is about are measured and judged."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import hypot, inf, isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradveil._runner import Settings
from gradveil.scoring import MARGIN, AgainstGuess, against_guess, gain_over_guess

from .grids import FAMILIES, NOISE, attacker_of
from .numbers import (
    CHANCE,
    Defended,
    Pair,
    Unit,
    Units,
    by_defense,
    final_losses,
    grouped,
    independent,
    interval,
    name_and_level,
    nested,
    select,
    units_of,
)
from .study import AllResults, Results

REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "undecided"
NOT_TESTABLE = "not testable here"
"""Of a claim about what attacks find, where they find no more than a guess without a defense."""
NOT_TESTED, NOT_ASKED = "not tested", "-"
"""Of a claim that could be tested, but was not; and of one that a setting does not change."""
VERDICTS = (REPRODUCED, NOT_REPRODUCED, UNDECIDED, NOT_TESTABLE)

MINIMUM_GROUPS = 6
"""Fewer independent pairs decide nothing: an interval of five draws is a guess at its own width."""

Measure = Callable[[AllResults], Units]


class Judgement(NamedTuple):
    """A verdict with the numbers behind it."""

    verdict: str
    mean: float | None = None
    """The mean difference; positive where the claim says so."""
    low: float | None = None
    high: float | None = None
    effect: float | None = None
    """The mean over the standard deviation of the groups' differences (Cohen's d_z)."""
    pairs: int = 0
    """Pairs of cells, by batch and seed."""
    groups: int = 0
    """Independent groups: batches, or seeds where all share one batch."""
    reason: str = ""


def judge(units: Units, margin: float | None = None, half_width: float = 0.0) -> Judgement:
    """Test differences that are positive where a claim holds.

    Without a margin the claim is that the mean is above 0: reproduced if the whole 95 % interval
    is, not reproduced if the whole interval is below. With a margin the claim is that two things
    are similar, |mean| < margin: reproduced if the interval is inside, not reproduced if it is
    outside on one side. Anything else is undecided, and so is everything with too few groups;
    without any pair the claim is not tested.

    `half_width` is that of a 95 % interval of the mean for reasons that the units do not show; it
    is added as independent errors are: both ends move to √((end - mean)² + half_width²). Where it
    is infinite there is no interval, and nothing is decided.
    """
    groups = independent(units)
    if not groups:
        return Judgement(NOT_TESTED, reason="no pairs that can be compared")
    found = Judgement(UNDECIDED, pairs=len(units), groups=len(groups))
    if not all(bool(values.isfinite().all()) for group in groups for values in group):
        return found._replace(reason="a cell found a number that is not finite")
    means = torch.stack([torch.stack([v.mean() for v in group]).mean() for group in groups])
    scatter = float(means.std()) if len(groups) > 1 else 0.0
    found = found._replace(
        mean=float(means.mean()), effect=float(means.mean() / scatter) if scatter else None
    )
    if not isfinite(half_width):
        return found._replace(reason="one seed of the losses decides it")
    if len(groups) > 1:
        of_mean = interval(groups)
        mean, low, high = of_mean.mean, of_mean.low, of_mean.high
        low, high = mean - hypot(mean - low, half_width), mean + hypot(high - mean, half_width)
        found = found._replace(low=low, high=high)
        if len(groups) >= MINIMUM_GROUPS:
            verdict, reason = _verdict(low, high, margin)
            return found._replace(verdict=verdict, reason=reason)
    return found._replace(
        reason=f"{len(groups)} independent pairs; at least {MINIMUM_GROUPS} are needed"
    )


def withheld(judgement: Judgement, found: AgainstGuess | None) -> Judgement:
    """The judgement; none where its attack without a defense does not beat a blind guess.

    Nor where that attack was not run (`None`): nobody knows what it is worth.
    """
    if judgement.mean is None:
        return judgement
    if found is None:
        reason = "the attack was not run without a defense, so what it is worth is not known"
        return judgement._replace(verdict=NOT_TESTED, reason=reason)
    if found.works:
        return judgement
    gain = found.gain
    reason = (
        f"without a defense the attack is {gain.mean:+.1f} [{gain.low:.1f}, {gain.high:.1f}] dB"
        f" below the error of a blank image, where {MARGIN:g} is asked for"
    )
    return judgement._replace(verdict=NOT_TESTABLE, reason=reason)


def _verdict(low: float, high: float, margin: float | None) -> tuple[str, str]:
    if margin is None:
        if low > 0:
            return REPRODUCED, "the whole interval is on the claim's side"
        if high < 0:
            return NOT_REPRODUCED, "the whole interval is on the other side"
        return UNDECIDED, "no pair differs" if low == high == 0 else "the interval holds 0"
    if -margin < low and high < margin:
        return REPRODUCED, f"the whole interval is within ±{margin:g}"
    if low > margin or high < -margin:
        return NOT_REPRODUCED, f"the whole interval is beyond ±{margin:g}"
    return UNDECIDED, f"the interval is neither within nor beyond ±{margin:g}"


ByDefense = Mapping[Defended, Units]
"""The measured values of each defense and level."""

CAPPED_ERROR = "capped_unmatched_mse"
"""Images place by place, as in the paper, each error counted up to that of a blank image."""
ERROR_OF = {"psnr": "mse", "unmatched_psnr": "unmatched_mse"}
"""The errors of the scores of which less is better."""


def errors_of(results: Results, metric: str, attacker: str | None = None) -> ByDefense:
    """A score of the attacks, by defense; of one attacker where several were run.

    Anybody can answer with a blank image, so an error above that of one protects no better:
    `CAPPED_ERROR` is min(error, error of a blank image), image by image and level by level; curves
    at equal loss join what is capped.
    """
    cells = {
        cell: result
        for cell, result in results.items()
        if cell.name == "attack" and attacker in (None, attacker_of(cell.settings))
    }
    errors = _values(cells, "attack", uncapped(metric))
    if metric != CAPPED_ERROR:
        return errors
    blanks = _values(cells, "attack", "blank_mse")
    return {
        defense: {unit: torch.minimum(error, blanks[defense][unit]) for unit, error in own.items()}
        for defense, own in errors.items()
    }


def uncapped(metric: str) -> str:
    """The score itself, of one that is capped or not."""
    return "unmatched_mse" if metric == CAPPED_ERROR else metric


def _values(results: Results, kind: str, value: str) -> ByDefense:
    groups = by_defense(results, kind)
    return {defense: units_of(cells, value) for defense, cells in groups.items()}


def losses_of(results: Results) -> ByDefense:
    """The loss after the short trainings, by defense."""
    return _values(results, "short_training", "after")


def final_losses_of(results: Results, last: int = 8) -> ByDefense:
    """The mean loss over the last rounds of the training runs, by defense; 0 stands for all."""
    runs = by_defense(results, "training")
    return {defense: final_losses(pairs, last) for defense, pairs in runs.items()}


mean_losses_of = partial(final_losses_of, last=0)
"""The mean loss over all rounds: the less, the faster a training is."""


def difference(measured: ByDefense, first: Defended, second: Defended) -> dict[Unit, Tensor]:
    """first - second on the batches and seeds that both have."""
    ours, theirs = measured.get(first, {}), measured.get(second, {})
    return {
        unit: ours[unit] - theirs[unit]
        for unit in ours
        if unit in theirs and ours[unit].shape == theirs[unit].shape
    }


def levels_of(measured: ByDefense, name: str, above: float = -inf) -> list[float]:
    """The levels of a defense above one."""
    return [x for known, x in measured if known == name and x is not None and x > above]


def mean_value(units: Mapping[Any, Tensor]) -> float:
    """The mean over all values."""
    return float(torch.cat([*units.values()]).mean())


def mean_of(each: Iterable[Units]) -> dict[Unit, Tensor]:
    """The mean over several levels, for each batch and seed that all of them have."""
    each = [units for units in each if units]
    if not each:
        return {}
    common = set.intersection(*(set(units) for units in each))
    return {unit: torch.stack([units[unit] for units in each]).mean(0) for unit in sorted(common)}


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
    errors: ByDefense, losses: ByDefense, first: str, second: str, ceiling: float = inf
) -> EqualLoss:
    """The error of first - second where both train equally well, at losses below a ceiling.

    Each defense's levels make a curve of (mean loss, error of a batch); the curves are compared by
    linear interpolation at losses that both reach, less than a third of the shorter curve being too
    few. So curves count as straight between levels. Levels above the ceiling are left out.
    Losses are means over the seeds that all levels have, because a seed shifts all levels alike.
    What these seeds leave open comes from leaving out one after the other: Student's quantile times
    √((n-1)/n Σ (D₋ₛ - D̄)²), the jackknife's standard error of the mean difference D.
    """
    levels = [
        [d for d in errors if d[0] == name and d[1] is not None and losses.get(d)]
        for name in (first, second)
    ]
    used = [set(losses[d]) for own in levels for d in own]
    seeds = sorted(set.intersection(*used)) if used else []

    def compared(seeds: Sequence[Unit]) -> dict[Unit, Tensor]:
        ours, theirs = (_curve(own, losses, seeds, ceiling) for own in levels)
        return _between(ours, theirs, errors)

    units, left = compared(seeds), [compared([s for s in seeds if s != seed]) for seed in seeds]
    if len(left) < 2 or not all(left):
        return EqualLoss(units, inf)
    return EqualLoss(units, _jackknife([mean_value(each) for each in left]))


def _curve(
    levels: Iterable[Defended], losses: ByDefense, seeds: Sequence[Unit], ceiling: float
) -> dict[Defended, float]:
    """The mean losses of the levels that learned, in their order."""
    means = {d: mean_value({s: losses[d][s] for s in seeds}) for d in levels} if seeds else {}
    learned = [d for d, loss in means.items() if isfinite(loss) and loss < ceiling]
    return {d: means[d] for d in sorted(learned, key=lambda d: (means[d], d[1] or 0.0))}


def _between(
    ours: Mapping[Defended, float], theirs: Mapping[Defended, float], errors: ByDefense
) -> dict[Unit, Tensor]:
    """The differences of each batch at the losses that two curves share."""
    if min(len(ours), len(theirs)) < 2:
        return {}
    ranges = [(min(x.values()), max(x.values())) for x in (ours, theirs)]
    low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
    if high <= low or high - low < LEAST_OVERLAP * min(b - a for a, b in ranges):
        return {}
    grid = np.linspace(low, high, POINTS)

    def along(curve: Mapping[Defended, float], unit: Unit) -> Tensor:
        images = torch.stack([errors[d][unit] for d in curve]).numpy().T
        means = [np.interp(grid, [*curve.values()], own).mean() for own in images]
        return torch.tensor(means, dtype=torch.float64)

    units = set.intersection(*(set(errors[d]) for d in (*ours, *theirs)))
    return {unit: along(ours, unit) - along(theirs, unit) for unit in sorted(units)}


def _jackknife(left_out: Sequence[float]) -> float:
    """Half of a 95 % interval, from the values with one seed left out each."""
    from scipy.stats import t

    count = len(left_out)
    scatter = sum((value - sum(left_out) / count) ** 2 for value in left_out)
    return float(t.ppf(0.975, count - 1)) * math.sqrt((count - 1) / count * scatter)


SAME = ("data", "model", "size", "attack", "mechanism", "model_seed", "trained", "local")
"""Two attack cells with equal values of these attack alike."""


class Attacked(NamedTuple):
    """What the attacks of a study found, or its losses in their place, and all other results."""

    errors: ByDefense
    blanks: ByDefense
    """Errors of an image of the mean colour."""
    results: AllResults


Compare = Callable[[Attacked], "Units | EqualLoss"]
"""From errors to differences that are positive where a claim holds."""


@dataclass(frozen=True)
class AttackMeasure:
    """A measure of a claim that is read off attacks: worth what these attacks are."""

    compare: Compare
    study: str
    metric: str
    """The score that the claim compares; of PSNR the less is better."""
    attacker: str | None = None

    def compared(self, results: AllResults) -> EqualLoss:
        """The differences, and what losses leave open of them, where these have a part in it."""
        cells = results.get(self.study, {})
        errors, blanks = (errors_of(cells, m, self.attacker) for m in (self.metric, "blank_mse"))
        found = self.compare(Attacked(errors, blanks, results))
        if isinstance(found, EqualLoss):
            return found
        sign = -1 if self.metric in ERROR_OF else 1
        return EqualLoss({unit: sign * values for unit, values in found.items()}, 0.0)

    def undefended(self, results: AllResults) -> AgainstGuess | None:
        """The same attack without a defense, beside an image of the mean colour, in decibels.

        The cells may be of any study; `None` where there are none.
        """
        attacks = [s for s, _ in select(results.get(self.study, {}), "attack")]

        def key(settings: Settings) -> str:
            return repr([settings.get(name) for name in SAME])

        alike = {key(s) for s in attacks if self.attacker in (None, attacker_of(s))}
        pairs = {
            (pair[0].get("start", 0), pair[0].get("seed", 0)): pair
            for cells in results.values()
            for pair in select(cells, "attack", defense="no-defense")
            if key(pair[0]) in alike
        }
        return beats_guess(pairs.values(), ERROR_OF.get(self.metric, uncapped(self.metric)))


def beats_guess(undefended: Iterable[Pair], error: str = "mse") -> AgainstGuess | None:
    """Attacks on undefended messages beside a blank image; `None` where there are none."""
    undefended = [*undefended]
    errors, guesses = (units_of(undefended, name) for name in (error, "blank_mse"))
    gains = {unit: gain_over_guess(errors[unit], guesses[unit]) for unit in errors}
    return against_guess(nested(gains), torch.Generator().manual_seed(0)) if gains else None


def undefended_gains(results: AllResults, study: str) -> str:
    """What each attacker of a study reaches without a defense, matched, as text."""
    attackers = sorted({attacker_of(s) for s, _ in select(results.get(study, {}), "attack")})
    measures = {name: AttackMeasure(lambda _: {}, study, "mse", name) for name in attackers}
    found = {name: measure.undefended(results) for name, measure in measures.items()}
    gains = [(name, one.gain) for name, one in found.items() if one is not None]
    return ", ".join(
        f"{name} {gain.mean:.1f} [{gain.low:.1f}, {gain.high:.1f}] dB" for name, gain in gains
    )


def at_equal_levels(
    errors: ByDefense, family: str, above: float = -inf
) -> dict[float, dict[Unit, Tensor]]:
    """How much better the optimal defense protects at each of its levels above one."""
    classical, optimal = FAMILIES[family]
    levels = levels_of(errors, optimal, above)
    return {x: difference(errors, (optimal, x), (classical, x)) for x in levels}


def level_gain(family: str, above: float = 0.0) -> Compare:
    """The difference at equal level, in the mean over levels above one."""
    return lambda found: mean_of(at_equal_levels(found.errors, family, above).values())


def largest_difference(family: str) -> Compare:
    """The difference at the level where it is largest in the mean."""

    def compare(found: Attacked) -> Units:
        each = filter(None, at_equal_levels(found.errors, family).values())
        return max(each, key=lambda units: abs(mean_value(units)), default={})

    return compare


def fixed_levels(family: str, optimal_level: float, level: float) -> Compare:
    """The error of the optimal defense at one level over that of its twin at another."""
    classical, optimal = FAMILIES[family]
    pair = (optimal, optimal_level), (classical, level)
    return lambda found: difference(found.errors, *pair)


def equal_loss(family: str, study: str, trained: bool = False) -> Compare:
    """The optimal defense's error over its twin's at equal training loss.

    The losses of a study: those after a few steps, or those at the end of real trainings
    (`trained`), of which only ones that have learned something count.
    """
    classical, optimal = FAMILIES[family]

    def compare(found: Attacked) -> EqualLoss:
        losses = (final_losses_of if trained else losses_of)(found.results.get(study, {}))
        ceiling = learned_below(losses) if trained else inf
        return at_equal_loss(found.errors, losses, optimal, classical, ceiling)

    return compare


def beyond_blank(above: float) -> Compare:
    """The error behind noise over that of an image of the mean colour, at scales above this one."""

    def compare(found: Attacked) -> Units:
        scales = [{*levels_of(found.errors, name, above)} for name in NOISE]
        noisy = [(name, level) for level in sorted(set.intersection(*scales)) for name in NOISE]
        return mean_of(
            {u: e - found.blanks[d][u] for u, e in found.errors[d].items()} for d in noisy
        )

    return compare


def growing_gain(family: str) -> Compare:
    """The difference at the largest level, less that at the smallest."""

    def compare(found: Attacked) -> Units:
        each = at_equal_levels(found.errors, family)
        if len(each) < 2:
            return {}
        small, large = each[min(each)], each[max(each)]
        return {unit: large[unit] - small[unit] for unit in large if unit in small}

    return compare


Losses = Callable[[Results], ByDefense]
"""Which losses of a study's cells count."""


def of_losses(compare: Compare, study: str, losses: Losses) -> Measure:
    """A comparison of errors, made of losses: the less, the better."""

    def measure(results: AllResults) -> Units:
        found = compare(Attacked(losses(results.get(study, {})), {}, results))
        assert not isinstance(found, EqualLoss)
        return {unit: -values for unit, values in found.items()}

    return measure


def trained_losses_of(results: Results) -> ByDefense:
    """The losses at the end of trainings with noise, at scales where either form has learned."""
    losses = final_losses_of(results)
    limit = learned_below(losses)
    levels = {d[1] for d, own in losses.items() if d[0] in NOISE and mean_value(own) < limit}
    return {d: own for d, own in losses.items() if d[0] in NOISE and d[1] in levels}


def layer_contrast(study: str, kind: str, defense: Defended | None = None) -> Measure:
    """log₂ of the largest over the smallest mean noise of a layer, less 1 (a factor of two).

    Among weights or among biases: these two differ for other reasons than their layer. Of one
    defense, where the study has runs with several.
    """

    def measure(results: AllResults) -> Units:
        units: dict[Unit, Tensor] = {}
        for settings, result in select(results.get(study, {}), "training"):
            if defense is not None and name_and_level(settings["defense"]) != defense:
                continue
            of_kind = [v for name, v in result["levels"].items() if name.rpartition(".")[2] == kind]
            means = [sum(levels) / len(levels) for levels in of_kind]
            if means:
                contrast = math.log2(max(means) / max(min(means), 1e-30)) - 1
                units[(0, settings["seed"])] = torch.tensor([contrast], dtype=torch.float64)
        return units

    return measure


def attack_above_bound(study: str, kind: str = "bound", value: str = "bound") -> Measure:
    """How far the error is above the bound, of the attack and the noise with the least such mean.

    In shares of the noise's mean bound: little noise has a small bound, below which an error cannot
    be by much. Which bound: the cells of a kind, and a value of theirs. Noise whose mean bound is
    next to 0 (1e-3, in normalised units) is left out, and so are attacks that find no more than a
    blank image: every error is above the one, and a failed attack is above any other, so neither
    tests anything.
    """

    def measure(results: AllResults) -> Units:
        cells = results.get(study, {})
        bounds = {
            defense: {s["start"]: torch.tensor([r[value]], dtype=torch.float64) for s, r in pairs}
            for defense, pairs in grouped(select(cells, kind), lambda s: s["defense"]).items()
        }
        telling = {name: own for name, own in bounds.items() if mean_value(own) > 1e-3}
        attacks = grouped(select(cells, "attack"), lambda s: (s["attack"], s["defense"]))
        margins = [
            _above(units_of(pairs, "mse"), telling.get(defense, {}))
            for (_, defense), pairs in attacks.items()
            if _finds_something(pairs)
        ]
        return min((units for units in margins if units), key=mean_value, default={})

    return measure


def _finds_something(pairs: Sequence[Pair]) -> bool:
    """Whether the mean error of an attack is below that of a blank image."""
    errors, blanks = (units_of(pairs, name) for name in ("mse", "blank_mse"))
    return mean_value(errors) < mean_value(blanks)


def _above(errors: Units, bounds: Mapping[int, Tensor]) -> Units:
    """The errors over the bounds of their batches, in shares of the mean bound."""
    both = {unit: error for unit, error in errors.items() if unit[0] in bounds}
    if not both:
        return {}
    mean = torch.cat([bounds[start] for start in {start for start, _ in both}]).mean()
    return {unit: (error - bounds[unit[0]]) / mean for unit, error in both.items()}
