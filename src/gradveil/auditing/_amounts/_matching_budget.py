"""Amounts of noise and pruning under which the defenses can be compared."""

from dataclasses import dataclass, replace

from torch import Tensor

from gradveil._checks import check_choice, check_not_negative, check_ratio
from gradveil._tensors import flatten, total
from gradveil._typing import Tensors
from gradveil.defenses import (
    Defense,
    GradientNoise,
    GradientPruning,
    NoiseDefense,
    PruningDefense,
    allowed_trace,
    keep_within,
)
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import Moments
from gradveil.theory import GaussianPrior, fisher_trace, trace_error, utility

from .._defaults import CLAMPED, RATIO
from ._requested_defenses import RequestedDefense
from ._training_gain import gain_of_a_step, ratio_for, scale_for

ITERATIONS = 30
"""At most so many steps to the scale of a plan whose shape depends on it."""

MATCHES = ("utility", "scale", "error", "training")


@dataclass(frozen=True)
class Budget:
    """What is held equal, read off two references: isotropic noise and magnitude pruning.

    - "utility": noise has the second-order utility U2 of isotropic noise of `scale`, pruning the
      first-order utility U1 of magnitude pruning of `ratio`, noisy pruning both.
    - "scale": all noise has `scale`, all pruning `ratio`.
    - "error": all noise is such that the trace bound is that of isotropic noise of `scale`; all
      pruning has `ratio`.
    - "training": all noise and all pruning is such that a step of the audit's own training, with
      Adam, is expected to gain what it gains under isotropic noise of `scale`
      (`expected_decrease`); noisy pruning loses as much by pruning as by noise.
    """

    match: str
    scale: float
    ratio: float
    clip: float
    second: float
    first: float
    error: float
    prior: GaussianPrior | None
    gain: float = 0.0
    """What a step gains under the reference noise; only for "training"."""
    free_gain: float = 0.0
    """The same without a defense."""

    def explain(self) -> str:
        """What is equal, in one or two sentences."""
        noise, pruning = f"isotropic noise of scale {self.scale:.3g}", f"{self.ratio:.0%}"
        if self.match == "scale":
            return f"All noise has the scale {self.scale:.3g}, all pruning cuts {pruning}."
        if self.match == "error":
            return (
                f"Wherever there is noise, the reference error (in its simple form) is that of"
                f" {noise}, {self.error:.3g} per entry; all pruning cuts {pruning}."
            )
        if self.match == "training":
            share = self.gain / self.free_gain if self.free_gain > 0 else 1.0
            return (
                f"Under all defenses a step of Adam should gain what it gains under {noise},"
                f" {share:.0%} of what it gains without a defense."
            )
        return (
            f"Noise, with clamping or without, makes a training step vary as much as {noise} does"
            f" (equal U2). Pruning keeps as much of a step as magnitude pruning of {pruning} (equal"
            " U1). Noisy pruning has both. What training loses in the end, the loss, need not be"
            " equal."
        )


def make_budget(
    match: str,
    values: Tensors,
    moments: Moments,
    prior: GaussianPrior | None,
    scale: float | None = None,
    ratio: float | None = None,
) -> Budget:
    """The budget at a message; the scale is the root mean square of its entries unless given."""
    check_choice(match, "match", MATCHES)
    row = flatten(values).abs()
    if scale is None:
        scale = float(row.double().square().mean().sqrt())
    check_not_negative(scale, "scale")
    ratio = RATIO if ratio is None else ratio
    check_ratio(ratio, "ratio")
    noise = GradientNoise(scale).plan(moments)
    trace = fisher_trace(moments.judged(), noise)
    return Budget(
        match=match,
        scale=scale,
        ratio=ratio,
        clip=_threshold(row),
        second=-utility(values, noise).second,
        first=utility(values, GradientPruning(ratio).plan(moments)).first,
        error=trace_error(trace, moments.input_size, prior) / moments.input_size,
        prior=prior,
        gain=gain_of_a_step(moments, noise) if match == "training" else 0.0,
        free_gain=gain_of_a_step(moments, Mechanism(0.0)) if match == "training" else 0.0,
    )


def solve(
    requested: RequestedDefense, budget: Budget, moments: Moments, source: Moments | None = None
) -> Defense:
    """The defense with its open amounts found, as a plain scale and ratio.

    Args:
        requested: The defense, and what is open.
        budget: What is to be met on the audited message.
        moments: Of the audited message.
        source: What the defense plans from; `None`: from these moments.
    """
    defense, missing = requested.defense, requested.open
    source = moments if source is None else source
    if "clip" in missing:
        defense = replace(defense, clip=budget.clip)  # type: ignore[type-var]
    if isinstance(defense, NoiseDefense) and "scale" in missing:
        return _solve_noise(defense, budget, moments, source)
    if isinstance(defense, PruningDefense):
        if "ratio" in missing:
            defense = _solve_ratio(defense, budget, moments, source)
        if "noise" in missing:
            defense = _solve_noise_of(defense, budget, moments, source)
    return defense


def _solve_noise(
    defense: NoiseDefense, budget: Budget, moments: Moments, source: Moments
) -> NoiseDefense:
    """√(mean_i Σ_ii) of the plan that meets the budget.

    Most shapes do not depend on the scale, and one step finds it; noise for Adam has another shape
    at each, so that it is looked for step by step.
    """
    solved = replace(defense, scale=budget.scale or 1.0)
    for _ in range(ITERATIONS):
        last = solved.scale or 1.0
        factor = _scale(solved.plan(source), budget, moments)
        factor = factor / last if budget.match == "scale" else factor
        solved = replace(solved, scale=last * factor)
        if abs(factor - 1) < 1e-9 or factor == 0:
            break
    return solved


def _scale(unit: Mechanism, budget: Budget, moments: Moments) -> float:
    """The scale at which noise meets the budget, from what it does at scale 1.

    -U2 is proportional to the square of the scale, the information to its inverse.
    """
    if budget.match == "scale":
        return budget.scale
    if budget.match == "training":
        return scale_for(budget.gain, unit, moments)
    if budget.match == "utility":
        spent = (g2 * unit.std[n].square() for n, g2 in moments.squared_values.items())  # type: ignore[index]
        power = float(total(spent))
        return float((budget.second / power) ** 0.5) if power > 0 else 0.0
    allowed = allowed_trace(budget.error, moments, budget.prior)
    return float((fisher_trace(moments.judged(), unit) / allowed) ** 0.5)


def _solve_ratio(
    defense: PruningDefense, budget: Budget, moments: Moments, source: Moments
) -> PruningDefense:
    """The share that is pruned by the plan that meets the budget, to whole entries."""
    if budget.match in ("scale", "error"):
        return replace(defense, ratio=budget.ratio)
    scores = flatten(defense.scores(source))
    if budget.match == "training":
        alone = budget.gain if defense.noise is None else (budget.gain * budget.free_gain) ** 0.5
        return replace(defense, ratio=ratio_for(alone, scores, moments))
    kept = float(keep_within(scores, flatten(moments.squared_values), budget.first).double().sum())
    return replace(defense, ratio=1 - round(kept) / moments.size)


def _solve_noise_of(
    defense: PruningDefense, budget: Budget, moments: Moments, source: Moments
) -> PruningDefense:
    """The noise's scale: the root mean square over what is kept."""
    assert defense.noise is not None
    unit = replace(defense, noise=replace(defense.noise, scale=1.0)).plan(source)
    return replace(defense, noise=replace(defense.noise, scale=_scale(unit, budget, moments)))


def _threshold(row: Tensor) -> float:
    """The magnitude that a share `CLAMPED` of the entries exceeds."""
    place = max(1, round((1 - CLAMPED) * len(row)))
    return float(row.kthvalue(place).values) or 1.0
