"""From the store's results to the differences of a claim; each returns a function of results."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gradveil.studies.runner import Results, StoreResults
from gradveil.studies.shared import (
    NOISE,
    PRUNING,
    Pair,
    Unit,
    Units,
    grouped,
    name_and_level,
    select,
    units_of,
)

from ._claim import Measure
from ._equal_loss import EqualLoss, at_equal_loss, learned_below
from ._pairs import (
    ByDefense,
    Defense,
    at_equal_level,
    difference,
    errors_of,
    final_losses_of,
    losses_of,
    mean_losses_of,
    mean_of,
    mean_value,
    negated,
)
from ._testable import AttackMeasure

Losses = Callable[[Results], ByDefense]
"""Which losses of a study's cells count."""

TINY = 1e-30
LEAST_BOUND = 1e-3
"""Of the mean squared error in normalised units: below it a bound says nothing."""
PAIRS = {"pruning": PRUNING, "noise": NOISE}
TWINS = {"optimal-pruning": "gradient-pruning", "optimal-dpsgd": "dpsgd"}


def error_gain(study: str, family: str, metric: str, attacker: str | None = None) -> Measure:
    """How much better the optimal defense protects at equal level, in the mean over levels."""
    classical, optimal = PAIRS[family]

    def measure(results: StoreResults) -> Units:
        units = at_equal_level(
            errors_of(results.get(study, {}), metric, attacker), optimal, classical
        )
        return negated(units) if "psnr" in metric else units

    return AttackMeasure(measure, study, metric, attacker)


def largest_difference(
    study: str, family: str, metric: str, attacker: str | None = None
) -> Measure:
    """The difference between two defenses at the level where it is largest in the mean."""
    classical, optimal = PAIRS[family]

    def measure(results: StoreResults) -> Units:
        errors = errors_of(results.get(study, {}), metric, attacker)
        levels = [level for name, level in errors if name == optimal and level is not None]
        each = [difference(errors, (optimal, level), (classical, level)) for level in levels]
        return max((u for u in each if u), key=lambda units: abs(mean_value(units)), default={})

    return AttackMeasure(measure, study, metric, attacker)


def fixed_error(
    study: str,
    metric: str,
    optimal: str,
    level: float,
    twin_level: float,
    attacker: str | None = None,
) -> Measure:
    """The error of the optimal defense at one level over that of its twin at another."""

    def measure(results: StoreResults) -> Units:
        errors = errors_of(results.get(study, {}), metric, attacker)
        return difference(errors, (optimal, level), (TWINS[optimal], twin_level))

    return AttackMeasure(measure, study, metric, attacker)


def fixed_loss(
    study: str, optimal: str, level: float, twin_level: float, losses: Losses = losses_of
) -> Measure:
    """How much lower the optimal defense's loss after the short training is than its twin's."""

    def measure(results: StoreResults) -> Units:
        found = losses(results.get(study, {}))
        return difference(found, (TWINS[optimal], twin_level), (optimal, level))

    return measure


def run_gain(study: str, optimal: str, level: float, twin_level: float) -> Measure:
    """How much lower the optimal defense's mean loss over a training run is than its twin's."""

    def measure(results: StoreResults) -> Units:
        losses = mean_losses_of(results.get(study, {}))
        return difference(losses, (TWINS[optimal], twin_level), (optimal, level))

    return measure


def curve_gain(
    study: str,
    family: str,
    metric: str,
    attacks: str | None = None,
    attacker: str | None = None,
    trained: bool = False,
) -> Measure:
    """The optimal defense's error over its twin's at equal training loss.

    Losses are those after a few steps, or those at the end of real trainings (`trained`), of which
    only ones that have learned something count.
    """
    classical, optimal = PAIRS[family]

    def measure(results: StoreResults) -> EqualLoss:
        errors = errors_of(results.get(attacks or study, {}), metric, attacker)
        losses = (final_losses_of if trained else losses_of)(results.get(study, {}))
        ceiling = learned_below(losses) if trained else math.inf
        return at_equal_loss(errors, losses, optimal, classical, ceiling)

    return AttackMeasure(measure, attacks or study, metric, attacker)


def large_error_gain(study: str, above: float, metric: str, attacker: str | None = None) -> Measure:
    """The error of optimal noise over that of noise, both clamped, at equal scales above one."""
    classical, optimal = NOISE

    def measure(results: StoreResults) -> Units:
        errors = errors_of(results.get(study, {}), metric, attacker)
        return at_equal_level(errors, optimal, classical, low=above)

    return AttackMeasure(measure, study, metric, attacker)


def trained_losses_of(results: Results) -> ByDefense:
    """The losses at the end of trainings with noise, at scales where either form has learned."""
    losses = final_losses_of(results)
    limit = learned_below(losses)
    levels = {d[1] for d, own in losses.items() if d[0] in NOISE and mean_value(own) < limit}
    return {d: own for d, own in losses.items() if d[0] in NOISE and d[1] in levels}


def large_loss_gain(study: str, above: float, losses: Losses = losses_of) -> Measure:
    """The loss of noise over that of optimal noise, both clamped, at equal scales above one."""
    classical, optimal = NOISE
    return lambda results: at_equal_level(
        losses(results.get(study, {})), classical, optimal, low=above
    )


def growing_loss_gain(study: str, losses: Losses = losses_of) -> Measure:
    """The same difference of losses at the largest scale, less that at the smallest."""
    classical, optimal = NOISE

    def measure(results: StoreResults) -> Units:
        found = losses(results.get(study, {}))
        levels = sorted(level for name, level in found if name == optimal and level is not None)
        if len(levels) < 2:
            return {}
        small, large = (
            difference(found, (classical, level), (optimal, level))
            for level in (levels[0], levels[-1])
        )
        return {unit: large[unit] - small[unit] for unit in large if unit in small}

    return measure


def beyond_blank(study: str, above: float, metric: str, attacker: str | None = None) -> Measure:
    """The error behind noise over that of an image of the mean colour, at scales above this one."""

    def measure(results: StoreResults) -> Units:
        cells = results.get(study, {})
        errors, blanks = (errors_of(cells, name, attacker) for name in (metric, "blank_mse"))
        scales = [{level for name, level in errors if name == noise} for noise in NOISE]
        high = [level for level in set.intersection(*scales) if level is not None and level > above]
        noisy = [(name, level) for level in sorted(high) for name in NOISE]
        return mean_of({u: e - blanks[d][u] for u, e in errors[d].items()} for d in noisy)

    return AttackMeasure(measure, study, metric, attacker)


def layer_contrast(study: str, kind: str, defense: Defense | None = None) -> Measure:
    """log₂ of the largest over the smallest mean noise of a layer, less 1 (a factor of two).

    Among weights or among biases: these two differ for other reasons than their layer. Of one
    defense, where the study has runs with several.
    """

    def measure(results: StoreResults) -> Units:
        units: dict[Unit, Tensor] = {}
        for settings, result in select(results.get(study, {}), "training"):
            if defense is not None and name_and_level(settings["defense"]) != defense:
                continue
            of_kind = [v for name, v in result["levels"].items() if name.endswith(kind)]
            means = [sum(levels) / len(levels) for levels in of_kind]
            if means:
                contrast = math.log2(max(means) / max(min(means), TINY)) - 1
                units[(0, settings["seed"])] = torch.tensor([contrast], dtype=torch.float64)
        return units

    return measure


def best_attack_above_bound(study: str, kind: str = "bound", value: str = "bound") -> Measure:
    """How far the error is above the bound, of the attack and the noise with the least such mean.

    In shares of the noise's mean bound: little noise has a small bound, below which an error cannot
    be by much. Which bound: the cells of a kind, and a value of theirs. Noise whose mean bound is
    next to 0 is left out, and so are attacks that find no more than a blank image: every error is
    above the one, and a failed attack is above any other, so neither tests anything.
    """

    def measure(results: StoreResults) -> Units:
        cells = results.get(study, {})
        bounds = {
            defense: {s["start"]: torch.tensor([r[value]], dtype=torch.float64) for s, r in pairs}
            for defense, pairs in grouped(select(cells, kind), lambda s: s["defense"]).items()
        }
        telling = {name: own for name, own in bounds.items() if mean_value(own) > LEAST_BOUND}
        attacks = grouped(select(cells, "attack"), lambda s: (s["attack"], s["defense"]))
        margins = [
            _above(units_of(pairs, "mse"), telling.get(defense, {}))
            for (_, defense), pairs in attacks.items()
            if _finds_something(pairs)
        ]
        margins = [units for units in margins if units]
        return min(margins, key=lambda units: mean_value(units), default={})

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


def best_attack_above_candidates(study: str) -> Measure:
    """The error over that of the best attacker with candidates: no model of images is assumed."""
    return best_attack_above_bound(study, "candidate-bound", "error")
