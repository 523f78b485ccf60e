"""What one defense guarantees and costs, without attacking it by hand."""

import math
from copy import deepcopy
from typing import Any

import torch

from gradveil._checks import task_of
from gradveil._random import numbered_stream
from gradveil._tensors import total
from gradveil._timing import time_ratios
from gradveil.attacks import IdentificationReport, identify_trials
from gradveil.defenses import Defended, Defense
from gradveil.denoising import LearnedPriors
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import size_in_bytes, trainable_parameters, values_of
from gradveil.shapes import ModelSource
from gradveil.theory import Bound, BoundCase, Prior, mean_bound, utility

from .._result import CANDIDATES, BoundResult, Detail, LayerResult, Promise, ToldApart
from .._subject import Audited, Batch
from ._laboratory import Laboratory

FEWEST = 8
"""Candidates are of one class where a class has at least so many."""

TRIALS, LEAST_TRIALS = 128, 6
"""Messages in all, and for a very large model. A plan that depends on the batch is made for each
message and candidate: then eight times fewer."""

MOST_WORK = 2**29
"""Trials times candidates times entries of the message: some seconds."""

FULL_LIMIT = 2**30
"""Up to how many batches times input entries times message entries the full bound is computed."""

STREAM = 5
"""The place of its random numbers in those of an audit."""

NORMS = "nothing limits what one example can change"
ENTRIES = "entries of the batch's message are clamped, not the norm of each example's"
"""Why there is no (ε, δ), without and with clamping."""

TIMINGS = 9
"""Pairs of a plain and a defended message that are timed."""


PLACE_BY_PLACE = "it is for errors place by place, and attacks are scored after matching examples"
"""Why a bound is no guarantee for those scores."""


def told_apart(laboratory: Laboratory, defense: Defense) -> ToldApart | None:
    """What the exact attacker reaches; `None` where it cannot be computed.

    Candidates are public examples where there are any, of one class where one has enough, and the
    same for all defenses. One that does not state what it does as a mechanism with a likelihood
    has no such number.
    """
    subject = laboratory.subject
    count, one_class = candidate_choice(subject.known[1], subject.batch_size)
    if count < 2:
        return None
    entries = sum(p.numel() for p in trainable_parameters(subject.model).values())
    trials = TRIALS // 8 if defense.about.private else TRIALS
    trials = max(LEAST_TRIALS, min(trials, MOST_WORK // (count * entries)))
    try:
        report = identified(
            subject,
            defense,
            subject.known,
            candidates=count,
            one_class=one_class,
            trials=trials,
            per_draw=-(-trials // 2),
            generator=numbered_stream(laboratory.settings.seed, STREAM),
        )
    except TypeError:  # no mechanism, or one without a likelihood
        return None
    return ToldApart(report.candidates, trials, report.rate, report.bits, one_class)


def identified(
    subject: Audited, defense: Defense, examples: Batch, **options: Any
) -> IdentificationReport:
    """The exact attacker's trials with candidates from these examples (`identify_trials`)."""
    return identify_trials(
        subject.model,
        subject.loss_fn,
        examples,
        defense,
        num_classes=subject.data.num_classes,
        batch_size=subject.batch_size,
        local=subject.local,
        **options,
    )


def candidate_choice(
    targets: torch.Tensor, batch_size: int, most: int = CANDIDATES
) -> tuple[int, bool]:
    """How many candidates, and whether all of one class; other targets have none."""
    left = len(targets) - (batch_size - 1)
    if task_of(targets) == "classification":
        largest = min(int(torch.bincount(targets).max()), left)
        if largest >= FEWEST:
            return min(most, largest), True
    return min(most, left), False


def measure_defense(laboratory: Laboratory, defense: Defense) -> Detail:
    """Plan on the first batch and read everything off the mechanism."""
    promise, (values, mechanism, sent) = promise_of(laboratory, defense)
    layers = () if mechanism is None else (_layer(n, v, mechanism) for n, v in values.items())
    return Detail(
        **vars(promise),
        bytes_sent=size_in_bytes(sent),
        time_ratio=_time_ratio(laboratory.subject, defense),
        layers=tuple(layers),
    )


def promise_of(laboratory: Laboratory, defense: Defense) -> tuple[Promise, Defended]:
    """With the defended message of the first batch that it is of."""
    found = laboratory.respond(defense)
    kept: tuple[float, float] | tuple[None, None] = None, None
    if found.mechanism is not None:
        power = float(total(value.square() for value in found.values.values()))
        first, second = utility(found.values, found.mechanism)
        kept = (first / power, second / power) if power else (1.0, 0.0)
    bound, reason = guarantee_of(laboratory, defense)
    formal = defense.about.formal_privacy
    if formal is None and bound is None:
        formal = f"none: {reason or 'nothing is bounded'}"
    elif formal is None:
        formal = f"no (ε, δ): {NORMS if defense.about.clamp is None else ENTRIES}"
    promise = Promise(
        utility_first=kept[0],
        utility_second=kept[1],
        bound=bound,
        no_guarantee=reason,
        formal_privacy=formal,
    )
    return promise, found


def _layer(name: str, value: torch.Tensor, mechanism: AnyMechanism) -> LayerResult:
    parts = (getattr(mechanism, "std", 0.0), getattr(mechanism, "keep", None))
    std, keep = (part[name] if isinstance(part, dict) else part for part in parts)
    noise = torch.as_tensor(std, dtype=torch.float64).square().mean().sqrt()
    kept = torch.as_tensor(1.0 if keep is None else keep, dtype=torch.float64).mean()
    return LayerResult(name, value.numel(), float(noise), float(kept))


def _time_ratio(subject: Audited, defense: Defense) -> float:
    """The seconds of a defended message over those of the plain one, timed in turns.

    A plan from the model that is kept counts with its part of a call.
    """
    inputs, targets = subject.batch(0)
    message, own = subject.message(targets), deepcopy(defense)
    jobs, every = {"kept": lambda: own(message, inputs, numbered_stream(0))}, 1
    if isinstance(own.origin, ModelSource) and own.about.source == "model":
        every = own.origin.refresh_every
        jobs["planned"] = lambda: own.without_memory()(message, inputs, numbered_stream(0))
    ratios = time_ratios(lambda: values_of(message, inputs), jobs, TIMINGS)
    plan = max(0.0, ratios.get("planned", 0.0) - ratios["kept"])
    return ratios["kept"] + plan / every


def guarantee_of(
    laboratory: Laboratory, defense: Defense, full: bool = True
) -> tuple[BoundResult | None, str]:
    """The bound with the information averaged over batches; why there is none, or it is none.

    The full form where it is wanted and can be computed, beside the trace form. Where the plan is
    private, each batch has its own, and the bound (the trace form) counts what the plan itself
    reveals. Both are for errors after matching, as attacks are scored; where none is known, the
    reason says so.
    """
    subject, seed = laboratory.subject, laboratory.settings.seed
    if subject.tokens:
        return None, "bounds are on the error of numbers, and tokens are none"
    cases, known = _cases(laboratory, defense), [known for _, known in laboratory.population]
    if cases is None:
        return None, "what the defense does to a message is not stated as a mechanism"
    private = defense.about.private
    own, stream = subject.prior, numbered_stream(seed)
    prior: Prior | None = own.covering(cases, stream) if isinstance(own, LearnedPriors) else own
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
        return None, trace.reason
    place = "" if trace.matched else PLACE_BY_PLACE
    best, why = trace, "; ".join(part for part in (trace.reason, place) if part)
    entries = sum(p.numel() for p in trainable_parameters(subject.model).values())
    size = len(cases) * cases[0].inputs.numel() * entries
    if full and prior is not None and size <= FULL_LIMIT and not private:
        whole = mean_bound(
            cases,
            prior,
            public_plan=True,
            probes=2,  # where the inputs are large, each is a linear system to solve
            generator=numbered_stream(seed),
            known=known,
        )
        best = max(whole, trace, key=lambda one: one.matched)
    return _result(subject, best, trace, why), why


def _cases(laboratory: Laboratory, defense: Defense) -> list[BoundCase] | None:
    """What the defense does to each batch of the population; `None` if it does not say.

    A plan that does not depend on the private batch is made once for all of them.
    """
    cases: list[BoundCase] = []
    varies = defense.about.private or bool(defense.about.whole)
    for place, (inputs, known) in enumerate(laboratory.population):
        message, mechanism = known.message, cases[0].mechanism if cases and not varies else None
        if mechanism is None:
            generator = numbered_stream(laboratory.settings.seed, place)
            mechanism = deepcopy(defense).respond(message, inputs, generator).mechanism
        if mechanism is None:
            return None
        cases.append(BoundCase(defense.prepared(message), inputs, mechanism))
    return cases


def _has_levels(cases: list[BoundCase]) -> bool:
    """Whether every mechanism adds noise, whose levels tell of the batch."""
    stds = (getattr(case.mechanism, "std", None) for case in cases)
    return all(isinstance(std, dict) and any(bool(s.any()) for s in std.values()) for std in stds)


def _result(subject: Audited, best: Bound, trace: Bound, reason: str) -> BoundResult:
    """For errors after matching; where no bound on these is known, place by place."""
    shown = best.matched or best.per_entry
    in_units, taken = shown * min(subject.data.std) ** 2, best.per_entry - shown
    ends = best.interval and (max(0.0, best.interval[0] - taken), best.interval[1] - taken)
    return BoundResult(
        method=best.method,
        prior=best.prior,
        mse=shown,
        mse_standard_error=best.standard_error * best.per_entry / best.total,
        trace_mse=trace.matched or trace.per_entry,
        psnr_ceiling=-10 * math.log10(in_units) if subject.is_image else None,
        counts_plan=best.counts_plan,
        mse_pixels=in_units,
        batches=best.batches,
        reason=reason,
        mse_interval=ends,
        unmatched_mse=best.per_entry,
    )
