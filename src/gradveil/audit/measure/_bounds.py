"""The bound of one defense over batches of the population, or why there is none."""

import math
from copy import deepcopy
from typing import NamedTuple

from torch import Tensor

from gradveil._random import numbered_stream
from gradveil.defenses import Defense
from gradveil.theory import Bound, BoundCase, Evaluations, Prior, mean_bound

from .._result import PLACE_BY_PLACE, BoundResult
from .._subject import Audited

FULL_LIMIT = 2**30
"""Up to how many batches times input entries times message entries the full bound is computed."""


class Guarantee(NamedTuple):
    """What the theory says of a defense."""

    bound: BoundResult | None
    """`None`: there is none."""
    reason: str
    """Why there is none, or why the number is no guarantee; empty where it is one."""


Population = list[tuple[Tensor, Evaluations]]
"""Batches, each with what is known of its message."""


def population_of(subject: Audited) -> Population:
    """The batches over which bounds are averaged, for all defenses at this model."""
    return [(x, Evaluations(subject.message(y))) for x, y in subject.population()]


def guarantee_of(
    subject: Audited,
    defense: Defense,
    seed: int,
    population: Population | None = None,
    full: bool = True,
) -> Guarantee:
    """The bound with the information averaged over batches.

    The full form where it can be computed, beside the trace form. Where the plan is private, each
    batch has its own, and the bound (the trace form) counts what the plan itself reveals. Both are
    for errors after matching, as attacks are scored; where none is known, the reason says so.

    Args:
        subject: Model and data.
        defense: With its amounts.
        seed: Of everything random.
        population: `population_of(subject)`, which saves time where several defenses are bounded.
        full: Whether the full form is wanted.
    """
    if subject.tokens:
        return Guarantee(None, "bounds are on the error of numbers, and tokens are none")
    population = population or population_of(subject)
    cases, known = _cases(defense, seed, population), [known for _, known in population]
    if cases is None:
        return Guarantee(None, "what the defense does to a message is not stated as a mechanism")
    private = defense.about.private
    prior: Prior | None = subject.prior
    if subject.learned is not None:
        prior = subject.learned.covering(cases, numbered_stream(seed))
    trace = mean_bound(
        cases,
        prior,
        "trace",
        planned_by=defense if private and _has_levels(cases) else None,
        public_plan=not private,
        generator=numbered_stream(seed),
        known=known,
    )
    if not 0 < trace.total < math.inf:
        return Guarantee(None, trace.reason)
    best, why = trace, _reason(trace)
    if full and prior is not None and _size(cases) <= FULL_LIMIT and not private:
        whole = mean_bound(
            cases,
            prior,
            public_plan=True,
            probes=2,  # where the inputs are large, each is a linear system to solve
            generator=numbered_stream(seed),
            known=known,
        )
        best = max(whole, trace, key=lambda one: one.matched)
    return Guarantee(_result(subject, best, trace, why), why)


def _reason(bound: Bound) -> str:
    """Why it is no guarantee for errors as attacks have them."""
    return "; ".join(why for why in (bound.reason, "" if bound.matched else PLACE_BY_PLACE) if why)


def _cases(defense: Defense, seed: int, population: Population) -> list[BoundCase] | None:
    """What the defense does to each batch of the population; `None` if it does not say.

    A plan that does not depend on the private batch is made once for all of them.
    """
    cases: list[BoundCase] = []
    varies = defense.about.private or not defense.about.usual
    for place, (inputs, known) in enumerate(population):
        message, mechanism = known.message, cases[0].mechanism if cases and not varies else None
        if mechanism is None:
            generator = numbered_stream(seed, place)
            mechanism = deepcopy(defense).respond(message, inputs, generator).mechanism
        if mechanism is None:
            return None
        cases.append(BoundCase(defense.prepared(message), inputs, mechanism))
    return cases


def _has_levels(cases: list[BoundCase]) -> bool:
    """Whether every mechanism adds noise, whose levels tell of the batch."""
    stds = (getattr(case.mechanism, "std", None) for case in cases)
    return all(isinstance(std, dict) and any(bool(s.any()) for s in std.values()) for std in stds)


def _size(cases: list[BoundCase]) -> int:
    """Numbers in the Jacobians of all cases."""
    message = cases[0].message
    entries = sum(p.numel() for p in message.parameters.values())  # type: ignore[attr-defined]
    return len(cases) * cases[0].inputs.numel() * entries


def _shown(bound: Bound) -> float:
    """For errors after matching; where none is known, place by place."""
    return bound.matched or bound.per_entry


def _result(subject: Audited, best: Bound, trace: Bound, reason: str) -> BoundResult:
    in_units = _shown(best) * min(subject.data.std) ** 2
    taken = best.per_entry - _shown(best)
    ends = best.interval and (max(0.0, best.interval[0] - taken), best.interval[1] - taken)
    return BoundResult(
        method=best.method,
        prior=best.prior,
        mse=_shown(best),
        mse_standard_error=best.standard_error * best.per_entry / best.total,
        trace_mse=_shown(trace),
        psnr_ceiling=-10 * math.log10(in_units) if subject.is_image else None,
        counts_plan=best.counts_plan,
        mse_pixels=in_units,
        batches=best.batches,
        reason=reason,
        mse_interval=ends,
        unmatched_mse=best.per_entry,
    )
