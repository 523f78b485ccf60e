"""What the theory says of one defense, and what it costs, without attacks and training."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gradveil._drawing import new_figure, save_figure
from gradveil._random import numbered_stream
from gradveil._tensors import total
from gradveil._timing import time_ratios
from gradveil.attacks import IdentificationReport
from gradveil.catalog import build_defense, shown_name, spec_of
from gradveil.defenses import Defended, Defense, NoiseDefense, PruningDefense
from gradveil.denoising import LearnedPriors
from gradveil.mechanisms import AnyMechanism, Mechanism
from gradveil.messages import size_in_bytes, trainable_parameters, values_of
from gradveil.sensitivity import measure
from gradveil.shapes import ModelSource
from gradveil.theory import Bound, BoundCase, Prior, gain_over_isotropic, mean_bound, utility

from .._result import BoundResult, Detail, LayerResult, Promise
from .._settings import Settings
from .._subject import POPULATION, Audited
from ._attacks import candidate_choice, identified
from ._laboratory import Laboratory, with_public_plan
from ._strengths import axes_of

FULL_LIMIT = 2**30
"""Up to how many batches times input entries times message entries the full bound is computed."""

NORMS = "nothing limits what one example can change"
ENTRIES = "entries of the batch's message are clamped, not the norm of each example's"
"""Why there is no (ε, δ), without and with clamping."""

TIMINGS = 9
"""Pairs of a plain and a defended message that are timed."""

PLACE_BY_PLACE = "it is for errors place by place, and attacks are scored after matching examples"
"""Why a bound is no guarantee for those scores."""


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
    if subject.data.tokens:
        return None, "bounds are on the error of numbers, and tokens are none"
    cases, private = _cases(laboratory, defense), defense.about.private
    if cases is None:
        return None, "what the defense does to a message is not stated as a mechanism"
    own, stream = subject.prior, numbered_stream(seed)
    prior: Prior | None = own.covering(cases, stream) if isinstance(own, LearnedPriors) else own
    common: dict[str, Any] = {
        "public_plan": not private,
        "known": [known for _, known in laboratory.population],
    }
    trace = mean_bound(
        cases,
        prior,
        "trace",
        planned_by=defense if private and _has_levels(cases) else None,
        generator=numbered_stream(seed),
        **common,
    )
    if not 0 < trace.total < math.inf:
        return None, trace.reason
    place = "" if trace.matched else PLACE_BY_PLACE
    best, why = trace, "; ".join(part for part in (trace.reason, place) if part)
    entries = sum(p.numel() for p in trainable_parameters(subject.model).values())
    size = len(cases) * cases[0].inputs.numel() * entries
    if full and prior is not None and size <= FULL_LIMIT and not private:
        # where the inputs are large, each probe is a linear system to solve
        whole = mean_bound(cases, prior, probes=2, generator=numbered_stream(seed), **common)
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
        mse_decibels=-10 * math.log10(in_units) if subject.is_image else None,
        counts_plan=best.counts_plan,
        mse_pixels=in_units,
        batches=best.batches,
        reason=reason,
        mse_interval=ends,
        unmatched_mse=best.per_entry,
    )


FACTORS = tuple(2.0**k for k in range(-3, 4))
"""A sweep's scales over the defense's own."""

RATIOS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)

CANDIDATES, LEARNING = 7, 8
"""The places of the random numbers of the bound without a prior, and of a learned prior."""


@dataclass(frozen=True, kw_only=True)
class BoundPoint(Promise):
    """What one amount of a defense gives."""

    defense: str
    amount: float | None
    """The scale, the ratio or the step."""
    amount_name: str | None
    """Which of them it is."""
    gain_over_isotropic: float | None
    """Flat-prior trace bound at the first batch over that of isotropic noise of equal U2, judged by
    sensitivities that are independent of the plan; `None` without noise."""


class BoundStudy:
    """One defense on the first batch of a subject, its message measured once.

    Args:
        subject: Model and data.
        spec: The defense; amounts that are left out get usual values.
        seed: Of everything random.
    """

    def __init__(self, subject: Audited, spec: str | Defense, seed: int) -> None:
        self.laboratory = Laboratory(subject, settings=Settings(seed=seed))
        (axis,) = axes_of([spec], subject)
        middle = axis.start[len(axis.start) // 2]
        self.defense = build_defense(axis.at(middle), allow_imports=not isinstance(spec, str))
        (inputs, targets), stream = subject.batch(0), numbered_stream(seed)
        self.moments = measure(
            subject.message(targets), inputs, self.defense.estimator, generator=stream, judged=True
        )

    def point(self, defense: Defense) -> BoundPoint:
        """The numbers of the defense, or of a variant of it."""
        promise, found = promise_of(self.laboratory, self.laboratory.planned(defense))
        gain = math.inf
        if promise.bound is not None and isinstance(found.mechanism, Mechanism):
            judged = self.moments.judged()  # the plan's own estimates would flatter it
            gain = gain_over_isotropic(judged, found.mechanism)
        amount = defense.about.amount
        return BoundPoint(
            **vars(promise),
            defense=spec_of(defense),
            amount=None if amount is None else getattr(defense, amount),
            amount_name=amount,
            gain_over_isotropic=gain if math.isfinite(gain) else None,
        )

    def learn_prior(self, progress: Callable[[int, int, float], None] | None = None) -> None:
        """Take a prior learned from the public examples for all bounds from now on: minutes."""
        subject = self.laboratory.subject
        stream = numbered_stream(self.laboratory.settings.seed, LEARNING)
        samples, labels = subject.public or (subject.data.inputs[:0], None)
        learned = LearnedPriors.fit(samples, labels, generator=stream, progress=progress)
        self.laboratory = replace(self.laboratory, subject=replace(subject, prior=learned))

    def from_candidates(
        self, candidates: int | None = None, trials: int = 64
    ) -> IdentificationReport:
        """The bound without a prior, from public examples; as many candidates as there are to 256.

        They are of one class where one has enough, and others than the plan was made from.
        """
        subject = self.laboratory.subject
        examples = subject.known
        left = len(examples[0]) - POPULATION * subject.batch_size
        if subject.public is not None and 2 * left > len(examples[0]):
            examples = examples[0][:left], examples[1][:left]  # plans are made from the others
        most = 256 if candidates is None else candidates
        count, one_class = candidate_choice(examples[1], subject.batch_size, most)
        return identified(
            subject,
            with_public_plan(subject, self.defense),
            examples,
            candidates=count if candidates is None else candidates,
            one_class=one_class,
            trials=trials,
            per_draw=4,
            generator=numbered_stream(self.laboratory.settings.seed, CANDIDATES),
        )

    def sweep(self) -> list[Defense]:
        """The defense at other scales, or other ratios if it prunes; none if it has no amount."""
        defense = self.defense
        amounts: list[dict[str, Any]]
        if isinstance(defense, PruningDefense):
            amounts = [{"ratio": ratio} for ratio in RATIOS]
        elif isinstance(defense, NoiseDefense):
            std = self.laboratory.respond(self.laboratory.planned(defense)).mechanism.std  # type: ignore[union-attr]
            own = math.sqrt(float(total(s.square() for s in std.values())) / self.moments.size)  # type: ignore[union-attr]
            amounts = [{"scale": float(f"{own:.4g}") * factor} for factor in FACTORS]
        else:
            return []
        others: dict[str, Any] = {"utility_budget": None, "target_error": None}
        return [replace(defense, **others | amount) for amount in amounts]


def draw_sweep(points: Sequence[BoundPoint], path: Path) -> None:
    """The bounds over the amount, as a picture."""
    figure = new_figure(6, 4)
    axis, ratio = figure.subplots(), points[0].amount_name == "ratio"
    bounds = [(p.amount or 0.0, p.bound) for p in points if p.bound]
    for style, name in (("o-", "mse"), ("s--", "trace_mse")):
        errors = [getattr(bound, name) for _, bound in bounds]
        holds = all(bound.holds for _, bound in bounds)
        label = f"{'trace' if name != 'mse' else 'best'} bound{'' if holds else ', no guarantee'}"
        axis.plot([amount for amount, _ in bounds], errors, style, label=label)
    axis.set(
        xlabel="share of entries pruned" if ratio else "scale of the noise",
        ylabel="least mean squared error per entry",
        title=shown_name(points[0].defense),
        xscale="linear" if ratio else "log",
        yscale="log" if bounds else "linear",
    )
    axis.legend(title=bounds[0][1].prior if bounds else None)
    save_figure(figure, path, dpi=120, tight=True)
