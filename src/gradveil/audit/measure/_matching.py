"""Strengths under which defenses can be compared: something is held equal."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from gradveil._checks import check_choice, check_not_negative, check_ratio
from gradveil._random import numbered_stream
from gradveil._tensors import flatten, total
from gradveil._typing import Tensors
from gradveil.catalog import Spec, build_defense
from gradveil.defenses import (
    Defense,
    GradientNoise,
    GradientPruning,
    NoiseDefense,
    PrivateNoise,
    PruningDefense,
    allowed_trace,
    keep_within,
)
from gradveil.mechanisms import AnyMechanism, Mechanism
from gradveil.sensitivity import Moments, measure_with_values
from gradveil.shapes import Given
from gradveil.theory import GaussianPrior, expected_decrease, fisher_trace, trace_error, utility

from .._subject import Audited
from ._plans import PublicPlans, planned, source_of, unwrapped

RATIO, CLAMPED = 0.9, 0.01
"""The share that the reference of pruning cuts, and the share of entries that clamping clamps."""

RATE = 1e-3
"""Of Adam, whose expected gain "training" holds equal."""


@dataclass(frozen=True)
class RequestedDefense:
    """A defense, and which of its amounts are open: those hold a placeholder."""

    name: str
    defense: Defense
    open: frozenset[str] = frozenset()
    """Of "scale", "ratio", "clip" and "noise" (the scale of a pruning defense's noise)."""


def requested_defenses(asked: Sequence[str | Defense]) -> list[RequestedDefense]:
    """The defenses by unique names; specifications may leave their amounts out."""
    requested = [_requested(one) for one in asked]
    names = unique_names([one.name for one in requested])
    return [replace(one, name=name) for name, one in zip(names, requested, strict=True)]


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, numbered where they come again.

    >>> unique_names(["noise", "pruning", "noise"])
    ['noise', 'pruning', 'noise (2)']
    """
    counts = dict.fromkeys(names, 0)
    unique = []
    for name in names:
        counts[name] += 1
        unique.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return unique


def _requested(asked: str | Defense) -> RequestedDefense:
    if isinstance(asked, Defense):
        return RequestedDefense(_name(asked), asked)
    if not isinstance(asked, str):
        raise TypeError(
            "Parameter `defenses` should hold defenses or their specifications. Found"
            f" {type(asked).__name__}."
        )
    spec = Spec.parse(asked, "defense")
    defense = build_defense(spec.completed())
    return RequestedDefense(_name(defense), defense, spec.missing)


def _name(defense: Defense) -> str:
    """Its label; an optimal defense says if it plans from the private batch."""
    leaks = defense.about.private and defense.about.twin is not None
    return f"{defense.about.label} (private plan)" if leaks else defense.about.label


STEPS = 40
"""Of the bisection; a scale is given with six digits."""


def gain_of_a_step(moments: Moments, mechanism: AnyMechanism) -> float:
    """What a step of Adam, with the rate of the audit's training, is expected to gain."""
    return expected_decrease(moments, mechanism, RATE, "adam")


def scale_for(gain: float, planned: Mechanism, moments: Moments) -> float:
    """The scale of the noise at which a step gains that much; `planned` is its plan at scale 1.

    Standard deviations are proportional to the scale, and the gain falls with it.
    """
    if gain_of_a_step(moments, _with_noise(planned, 0.0)) < gain:
        raise ValueError(
            "Parameter `match` should be one that these defenses can meet. Found match='training'"
            " and a defense under which a step gains less than under the reference noise although"
            " it has no noise yet. Give a larger `scale`, or prune less."
        )
    low, high = 0.0, 1.0
    while gain_of_a_step(moments, _with_noise(planned, high)) > gain and high < 1e12:
        low, high = high, 10 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        short = gain_of_a_step(moments, _with_noise(planned, middle)) < gain
        low, high = (low, middle) if short else (middle, high)
    return float(f"{(low + high) / 2:.6g}")


def ratio_for(gain: float, scores: Tensor, moments: Moments) -> float:
    """The largest ratio at which a step still gains that much, to whole entries; low scores stay.

    Without noise Adam takes a step of the same length along every entry that is sent, which gains
    Σ_kept |g_i|.
    """
    order = scores.argsort(stable=True)
    gains = RATE * flatten(moments.squared_values).double().sqrt()[order].cumsum(0)
    kept = int((gains < gain).sum()) + 1
    return 1 - min(kept, moments.size) / moments.size


def _with_noise(planned: Mechanism, factor: float) -> Mechanism:
    assert isinstance(planned.std, dict)
    std = {name: factor * level for name, level in planned.std.items()}
    return Mechanism(std, planned.keep, planned.clip)


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
    requested: RequestedDefense, budget: Budget, moments: Moments, source: Given | None = None
) -> Defense:
    """The defense with its open amounts found, as a plain scale and ratio.

    Args:
        requested: The defense, and what is open.
        budget: What is to be met on the audited message.
        moments: Of the audited message.
        source: What the defense is shaped by; `None`: by these moments.
    """
    defense, missing = requested.defense, requested.open
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
    defense: NoiseDefense, budget: Budget, moments: Moments, source: Given | None
) -> NoiseDefense:
    """√(mean_i Σ_ii) of the plan that meets the budget.

    Most shapes do not depend on the scale, and one step finds it; noise for Adam has another shape
    at each, so that it is looked for step by step.
    """
    solved = replace(defense, scale=budget.scale or 1.0)
    for _ in range(ITERATIONS):
        last = solved.scale or 1.0
        factor = _scale(mechanism_for(solved, moments, source), budget, moments)
        factor = factor / last if budget.match == "scale" else factor
        solved = replace(solved, scale=last * factor)
        if abs(factor - 1) < 1e-9 or factor == 0:
            break
    return solved


def mechanism_for(defense: Defense, moments: Moments, source: Given | None) -> Any:
    """What the defense does to a message of these moments, shaped by the source."""
    if source is None:
        return defense.plan(moments)
    return defense.mechanism(source.shape, source.moments)


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
    defense: PruningDefense, budget: Budget, moments: Moments, source: Given | None
) -> PruningDefense:
    """The share that is pruned by the plan that meets the budget, to whole entries."""
    if budget.match in ("scale", "error"):
        return replace(defense, ratio=budget.ratio)
    given = source or Given(defense.shape(moments), moments)
    scores = defense.scores(given.shape, given.moments)
    if budget.match == "training":
        alone = budget.gain if defense.noise is None else (budget.gain * budget.free_gain) ** 0.5
        return replace(defense, ratio=ratio_for(alone, scores, moments))
    kept = float(keep_within(scores, flatten(moments.squared_values), budget.first).double().sum())
    return replace(defense, ratio=1 - round(kept) / moments.size)


def _solve_noise_of(
    defense: PruningDefense, budget: Budget, moments: Moments, source: Given | None
) -> PruningDefense:
    """The noise's scale: the root mean square over what is kept."""
    assert defense.noise is not None
    noisy = replace(defense, noise=replace(defense.noise, scale=1.0))
    unit = mechanism_for(noisy, moments, source)
    return replace(defense, noise=replace(defense.noise, scale=_scale(unit, budget, moments)))


def _threshold(row: Tensor) -> float:
    """The magnitude that a share `CLAMPED` of the entries exceeds."""
    place = max(1, round((1 - CLAMPED) * len(row)))
    return float(row.kthvalue(place).values) or 1.0


def matched(
    requested: Sequence[RequestedDefense],
    subject: Audited,
    match: str,
    scale: float | None,
    ratio: float | None,
    seed: int,
) -> tuple[Budget, list[tuple[str, Defense]]]:
    """The defenses by name, with their open amounts solved for at the first private batch."""
    check_use(requested, match, scale, ratio)
    if match == "training" and subject.local is not None:
        raise ValueError(
            "Parameter `match` should be 'utility', 'scale' or 'error' where clients send updates:"
            " 'training' needs gradients of single examples. Found match='training' with local"
            " steps."
        )
    inputs, targets = subject.batch(0)
    values, moments = measure_with_values(
        subject.message(targets),
        inputs,
        "auto",
        generator=numbered_stream(seed),
        judged=match == "error",
        examples=match == "training" or any(one.defense.about.needs.curvature for one in requested),
    )
    budget = make_budget(match, values, moments, subject.prior, scale, ratio)
    solved, plans = [], PublicPlans(subject, seed)
    for one in requested:
        source = source_of(subject, one.defense, moments, seed, plans)
        defense = planned(subject, solve(one, budget, moments, source))
        solved.append((one.name, unwrapped(defense)))
    return budget, solved


def check_use(
    requested: Sequence[RequestedDefense], match: str, scale: float | None, ratio: float | None
) -> None:
    """Require that amounts of the references are of use: some defense leaves its own open."""
    for one in requested:
        if isinstance(one.defense, PrivateNoise) and one.open:
            raise ValueError(
                f"The defense `{one.name}` should have its amounts: a guarantee is chosen, not"
                f" matched to other defenses. Found no {' and no '.join(sorted(one.open))}. Write"
                " for example private-noise(noise_multiplier=1.0, clip=1.0)."
            )
    amounts = {amount for one in requested for amount in one.open}
    uses = (
        ("scale", scale, {"scale", "noise"}),
        ("ratio", ratio, {"ratio"}),
        ("match", None if match == "utility" else match, {"scale", "noise", "ratio"}),
    )
    for name, value, needed in uses:
        if value is not None and not amounts & needed:
            raise ValueError(
                f"Parameter `{name}` should be left out where no defense leaves an amount open that"
                f" depends on it. Found `{name} = {value}` with {[one.name for one in requested]}."
            )
