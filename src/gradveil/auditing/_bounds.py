"""The bound of one defense over batches of the population, or why there is none."""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

from torch import Tensor

from gradveil._random import numbered_stream
from gradveil.defenses import Defense
from gradveil.theory import Bound, BoundCase, Evaluations, Prior, mean_bound

from ._defaults import BOUND_PROBES, FULL_LIMIT
from ._result import BoundResult
from ._subject import Subject

TOKENS = "bounds are on the error of numbers, and tokens are none"
"""Why there is no bound for them."""


class Guarantee(NamedTuple):
    """What the theory says of a defense."""

    bound: BoundResult | None
    """`None`: there is none."""
    reason: str
    """Why there is none, or why the number is no guarantee; empty where it is one."""


class PopulationBatch(NamedTuple):
    """A batch of the population, with what is known of its message."""

    inputs: Tensor
    known: Evaluations


def population_of(subject: Subject) -> list[PopulationBatch]:
    """The batches over which bounds are averaged, for all defenses at this model."""
    return [PopulationBatch(x, Evaluations(subject.message(y))) for x, y in subject.population()]


def guarantee_of(
    subject: Subject,
    defense: Defense,
    seed: int,
    probes: int = BOUND_PROBES,
    population: Sequence[PopulationBatch] | None = None,
    full: bool = True,
) -> Guarantee:
    """The bound with the information averaged over batches.

    The full form where it can be computed, beside the trace form. Where the plan is private, each
    batch has its own, and the bound (the trace form) counts what the plan itself reveals.

    Args:
        subject: Model and data.
        defense: With its amounts.
        seed: Of everything random.
        probes: Of the full form.
        population: `population_of(subject)`, which saves time where several defenses are bounded.
        full: Whether the full form is wanted.
    """
    if subject.tokens:
        return Guarantee(None, TOKENS)
    population = population or population_of(subject)
    cases, known = bound_cases(subject, defense, seed, population), [p.known for p in population]
    if cases is None:
        return Guarantee(None, "what the defense does to a message is not stated as a mechanism")
    private = defense.plan_is_private
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
    best = trace
    if full and prior is not None and _size(cases) <= FULL_LIMIT and not private:
        best = mean_bound(
            cases,
            prior,
            public_plan=True,
            probes=probes,
            generator=numbered_stream(seed),
            known=known,
        )
    return Guarantee(_result(subject, best, trace), trace.reason)


def bound_cases(
    subject: Subject,
    defense: Defense,
    seed: int,
    population: Sequence[PopulationBatch] | None = None,
) -> list[BoundCase] | None:
    """What the defense does to each batch of the population; `None` if it does not say.

    A plan that does not depend on the private batch is made once for all of them.
    """
    cases: list[BoundCase] = []
    varies = defense.plan_is_private or defense.steps_unlike(Defense)
    for place, (inputs, known) in enumerate(population or population_of(subject)):
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


def _result(subject: Subject, best: Bound, trace: Bound) -> BoundResult:
    in_units = best.per_entry * min(subject.data.std) ** 2
    return BoundResult(
        method=best.method,
        prior=best.prior,
        mse=best.per_entry,
        mse_standard_error=best.standard_error * best.per_entry / best.total,
        trace_mse=trace.per_entry,
        psnr_ceiling=-10 * math.log10(in_units) if subject.is_image else None,
        counts_plan=best.counts_plan,
        mse_pixels=in_units,
        batches=best.batches,
        data="public" if subject.public is not None else "audited",
        explained=trace.explained,
        reason=trace.reason,
        mse_interval=best.interval,
    )
