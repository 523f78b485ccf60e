"""The bound of one defense over batches of the population, or why there is none."""

import math
from copy import deepcopy
from typing import NamedTuple

from gradveil._random import numbered_stream
from gradveil.defenses import Defense
from gradveil.theory import Bound, BoundCase, Prior, mean_bound

from ._defaults import BOUND_PROBES, FULL_LIMIT
from ._result import BoundResult
from ._subject import Subject


class Guarantee(NamedTuple):
    """What the theory says of a defense."""

    bound: BoundResult | None
    """`None`: there is none."""
    reason: str
    """Why there is none, or why the number is no guarantee; empty where it is one."""


def guarantee_of(
    subject: Subject, defense: Defense, seed: int, probes: int = BOUND_PROBES, full: bool = True
) -> Guarantee:
    """The bound with the information averaged over batches.

    The full form where it can be computed, and is asked for, beside the trace form. Where the plan
    is private, each batch has its own, and the bound (the trace form) counts what the plan itself
    reveals.
    """
    cases = bound_cases(subject, defense, seed)
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
        )
    return Guarantee(_result(subject, best, trace), trace.reason)


def bound_cases(subject: Subject, defense: Defense, seed: int) -> list[BoundCase] | None:
    """What the defense does to each batch of the population; `None` if it does not say."""
    cases = []
    for place, (inputs, targets) in enumerate(subject.population()):
        message = subject.message(targets)
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
