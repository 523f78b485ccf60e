"""Strengths under which defenses can be compared: something is held equal."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradveil._checks import WrongValue
from gradveil._random import numbered_stream
from gradveil._tensors import flatten
from gradveil._typing import Tensors
from gradveil.catalog import Spec, build_defense, spec_of
from gradveil.defenses import (
    Defense,
    GradientNoise,
    GradientPruning,
    NoiseDefense,
    PruningDefense,
)
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import Moments, measure_with_values
from gradveil.theory import GaussianPrior, fisher_trace, trace_error, utility

from .._subject import Audited
from ._plans import PublicPlans
from ._strengths import RATIO, Axis

MATCHES = ("utility", "scale", "error")


@dataclass(frozen=True, eq=False)
class Budget:
    """What is held equal at a message, read off two references: noise and magnitude pruning.

    - "utility": noise has the second-order utility U2 of isotropic noise of `scale`, pruning the
      first-order utility U1 of magnitude pruning of `ratio`, noisy pruning both.
    - "scale": all noise has `scale`, all pruning `ratio`.
    - "error": all noise is such that the trace bound is that of isotropic noise of `scale`; all
      pruning has `ratio`.
    """

    match: str
    values: Tensors
    """The message."""
    moments: Moments
    """Of the message."""
    prior: GaussianPrior | None
    scale: float
    ratio: float

    @property
    def noise(self) -> Mechanism:
        """The reference of noise."""
        made: Mechanism = GradientNoise(self.scale).plan(self.moments)
        return made

    @property
    def error(self) -> float:
        """The reference's error per entry, in the trace form."""
        size = self.moments.input_size
        return trace_error(fisher_trace(self.moments.judged(), self.noise), size, self.prior) / size

    def of_noise(self, mechanism: Mechanism) -> float:
        """What is to be equal among mechanisms with noise; it rises with the squared scale."""
        if self.match == "utility":
            return -utility(self.values, mechanism).second
        trace = fisher_trace(self.moments.judged(), mechanism)
        return 1 / trace if trace > 0 else math.inf

    def kept(self, mechanism: Mechanism) -> float:
        """How much a pruned message keeps of a step."""
        return utility(self.values, mechanism).first

    @property
    def least(self) -> float:
        """How much of that is to be left."""
        return self.kept(GradientPruning(self.ratio).plan(self.moments))


def make_budget(
    match: str,
    values: Tensors,
    moments: Moments,
    prior: GaussianPrior | None,
    scale: float | None = None,
    ratio: float | None = None,
) -> Budget:
    """The budget at a message; the scale is the root mean square of its entries unless given."""
    if scale is None:
        scale = _rounded(float(flatten(values).double().square().mean().sqrt()))
    return Budget(match, values, moments, prior, scale, RATIO if ratio is None else ratio)


def matched(
    axes: Sequence[Axis],
    subject: Audited,
    match: str,
    scale: float | None,
    ratio: float | None,
    seed: int,
) -> tuple[Budget, list[Axis]]:
    """The defenses with their open amounts solved for at the first private batch."""
    defenses = [build_defense(axis.spec, allow_imports=True) for axis in axes]
    check_use(axes, defenses, match, scale, ratio)
    inputs, targets = subject.batch(0)
    message = subject.message(targets)
    values, moments = measure_with_values(
        message, inputs, "auto", generator=numbered_stream(seed), judged=match == "error"
    )
    budget = make_budget(match, values, moments, subject.prior, scale, ratio)
    plans, solved = PublicPlans(subject, seed), []
    for axis, defense in zip(axes, defenses, strict=True):
        plan = _planner(plans.of(defense), moments, message, inputs, seed) if axis.open else None
        found = defense if plan is None else solve(defense, axis.open, budget, plan)
        solved.append(Axis(axis.name, Spec.parse(spec_of(found), "defense")))
    return budget, solved


Planner = Callable[[Any], Mechanism]
"""What a defense, of a kind whatever its amount, does to the message."""


def _planner(planned: Defense, moments: Moments, message: Any, inputs: Any, seed: int) -> Planner:
    """Shaped by the plan, or by the message itself for a private one."""
    if planned.about.private or not planned.about.needs.moments:
        return lambda defense: defense.plan(moments)
    given = planned.given(moments, message, inputs, numbered_stream(seed))
    return lambda defense: defense.mechanism(given.shape, given.moments)


def solve(defense: Any, missing: frozenset[str], budget: Budget, plan: Planner) -> Defense:
    """The defense with its open amounts found, as a plain scale and ratio.

    Args:
        defense: With placeholders for what is open.
        missing: Of "scale", "ratio" and "noise" (the scale of a pruning defense's noise).
        budget: What is to be met.
        plan: What a defense does to the message.
    """
    if "ratio" in missing:
        defense = replace(defense, ratio=_ratio(defense, budget, plan))
    if "scale" in missing:
        defense = replace(defense, scale=_scale(lambda s: plan(replace(defense, scale=s)), budget))
    if "noise" in missing:
        pruned, noise = defense, defense.noise
        found = _scale(lambda s: plan(replace(pruned, noise=replace(noise, scale=s))), budget)
        defense = replace(pruned, noise=replace(noise, scale=found))
    solved: Defense = defense
    return solved


def _ratio(defense: PruningDefense, budget: Budget, plan: Planner) -> float:
    """The largest ratio at which enough is left, to whole entries."""
    if budget.match != "utility":
        return budget.ratio
    size = budget.moments.size

    def left(kept: int) -> float:
        return budget.kept(plan(replace(defense, ratio=1 - kept / size)))

    counts = range(1, size + 1)
    place = bisect_left(counts, budget.least, key=left)
    return 1 - counts[min(place, size - 1)] / size


def _scale(at: Callable[[float], Mechanism], budget: Budget) -> float:
    """The scale, in six digits, at which noise does what the reference does."""
    if budget.match == "scale" or budget.scale == 0:
        return budget.scale
    wanted, found = budget.of_noise(budget.noise), budget.of_noise(at(budget.scale))
    if not (0 < wanted < math.inf and 0 < found < math.inf):
        raise ValueError(
            "Parameter `match` should be one that these defenses can meet. Found"
            f" match='{budget.match}' and a defense that does at no scale what the reference noise"
            " does. Give a larger `scale`, or prune less."
        )
    return _rounded(budget.scale * math.sqrt(wanted / found))


def _rounded(scale: float) -> float:
    return float(f"{scale:.6g}")


def check_use(
    axes: Sequence[Axis],
    defenses: Sequence[Defense],
    match: str,
    scale: float | None,
    ratio: float | None,
) -> None:
    """Require that amounts of the references are of use: some defense leaves its own open."""
    for axis, defense in zip(axes, defenses, strict=True):
        if axis.open and not isinstance(defense, (NoiseDefense, PruningDefense)):
            raise ValueError(
                f"The defense `{axis.name}` should have its amounts: only those of noise and"
                " pruning are matched to other defenses. Found no"
                f" {' and no '.join(sorted(axis.open))}. Write for example"
                " private-noise(noise_multiplier=1.0, clip=1.0)."
            )
    amounts = {amount for axis in axes for amount in axis.open}
    uses = (
        ("scale", scale, {"scale", "noise"}),
        ("ratio", ratio, {"ratio"}),
        ("match", None if match == "utility" else match, {"scale", "noise", "ratio"}),
    )
    for name, value, needed in uses:
        if value is not None and not amounts & needed:
            raise WrongValue(
                name,
                "be left out where no defense leaves an amount open that depends on it",
                f"`{name} = {value}` with {[axis.name for axis in axes]}",
            )
