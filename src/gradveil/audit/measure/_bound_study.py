"""The bound, the utility and the gain of one defense, without attacks: at one amount or many."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradveil._drawing import new_figure, save_figure
from gradveil._random import numbered_stream
from gradveil._tensors import total
from gradveil.attacks import IdentificationReport
from gradveil.catalog import build_defense, shown_name, spec_of
from gradveil.defenses import Defense, NoiseDefense, PruningDefense
from gradveil.denoising import LearnedPriors
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import measure
from gradveil.theory import gain_over_isotropic

from .._result import Promise
from .._settings import Settings
from .._subject import POPULATION, Audited
from ._details import candidate_choice, identified, promise_of
from ._laboratory import Laboratory, with_public_plan
from ._strengths import axes_of

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
        subject, stream = (
            self.laboratory.subject,
            numbered_stream(self.laboratory.settings.seed, LEARNING),
        )
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
