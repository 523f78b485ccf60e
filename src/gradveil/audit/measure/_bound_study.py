"""The bound, the utility and the gain of one defense, without attacks: at one amount or many."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradveil._drawing import new_figure, save_figure
from gradveil._random import numbered_stream
from gradveil._tensors import total
from gradveil.attacks import CandidateBound, candidate_bound
from gradveil.catalog import shown_name, spec_of
from gradveil.defenses import Defense, NoiseDefense, PruningDefense
from gradveil.denoising import LearnedPriors
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import Moments, measure_with_values
from gradveil.shapes import Given
from gradveil.theory import gain_over_isotropic, utility

from .._result import BoundResult
from .._subject import POPULATION, Audited, Batch
from ._bounds import guarantee_of
from ._details import candidate_choice, formal_privacy
from ._matching import Budget, make_budget, mechanism_for, requested_defenses, solve
from ._plans import planned, source_of, warmed

FACTORS = tuple(2.0**k for k in range(-3, 4))
"""A sweep's scales over the defense's own."""

CANDIDATES, STREAM = 256, 7
"""Of the bound without a prior: how many, and the place of its random numbers."""

LEARNING = 8
"""The place of a learned prior's random numbers."""

RATIOS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)


@dataclass(frozen=True)
class BoundPoint:
    """What one amount of a defense gives."""

    defense: str
    amount: float | None
    """The scale, the ratio or the step."""
    amount_name: str | None
    """Which of them it is."""
    utility_first: float
    utility_second: float
    bound: BoundResult | None
    """`None`: no guarantee."""
    no_guarantee: str
    """Why there is none, or why the bound is no guarantee; empty where it is one."""
    gain_over_isotropic: float | None
    """Flat-prior trace bound at the first batch over that of isotropic noise of equal U2, judged by
    sensitivities that are independent of the plan; `None` without noise."""
    formal_privacy: str


class BoundStudy:
    """One defense on the first batch of a subject, its message measured once."""

    def __init__(
        self,
        subject: Audited,
        spec: str | Defense,
        seed: int,
        *,
        scale: float | None = None,
        ratio: float | None = None,
    ) -> None:
        self.subject, self.seed = subject, seed
        (requested,) = requested_defenses([spec])
        inputs, targets = subject.batch(0)
        self.values, self.moments = measure_with_values(
            subject.message(targets),
            inputs,
            requested.defense.estimator,
            generator=numbered_stream(seed),
            judged=True,
            examples=requested.defense.about.needs.curvature,
        )
        self.budget: Budget = make_budget(
            "scale", self.values, self.moments, subject.prior, scale, ratio
        )
        self.source = source_of(subject, requested.defense, self.moments, seed)
        self.defense = solve(requested, self.budget, self.moments, self.source)

    def point(self, defense: Defense | None = None) -> BoundPoint:
        """The numbers of the defense, or of a variant of it."""
        defense = self.defense if defense is None else defense
        mechanism = mechanism_for(defense, self.moments, self.source)
        first, second = utility(self.values, mechanism)
        power = max(_power(self.moments), 1e-300)
        public = warmed(self.subject, planned(self.subject, defense), self.seed)
        guarantee = guarantee_of(self.subject, public, self.seed)
        noisy = guarantee.bound is not None and isinstance(mechanism, Mechanism)
        judged = self.moments.judged()  # the plan's own estimates would flatter it
        gain = gain_over_isotropic(judged, mechanism) if noisy else None  # type: ignore[arg-type]
        return BoundPoint(
            defense=spec_of(defense),
            amount=amount_of(defense),
            amount_name=defense.about.amount,
            utility_first=first / power,
            utility_second=second / power,
            bound=guarantee.bound,
            no_guarantee=guarantee.reason,
            gain_over_isotropic=gain if gain is None or math.isfinite(gain) else None,
            formal_privacy=formal_privacy(defense, guarantee),
        )

    def learn_prior(self, progress: Callable[[int, int, float], None] | None = None) -> None:
        """Take a prior learned from the public examples for all bounds from now on: minutes."""
        samples, labels = self.subject.public or (self.subject.data.inputs[:0], None)
        learned = LearnedPriors.fit(
            samples, labels, generator=numbered_stream(self.seed, LEARNING), progress=progress
        )
        self.subject = replace(self.subject, learned=learned)

    def from_candidates(
        self, candidates: int | None = None, trials: int = 64, rest: str = "known"
    ) -> CandidateBound:
        """The bound without a prior, from public examples; as many candidates as there are to 256.

        They are of one class where one has enough, and others than the plan was made from.
        """
        subject = self.subject
        examples = _not_planned_from(subject)
        most = CANDIDATES if candidates is None else candidates
        count, one_class = candidate_choice(examples[1], subject.batch_size, most)
        return candidate_bound(
            subject.model,
            subject.loss_fn,
            examples,
            planned(subject, self.defense),
            num_classes=subject.data.num_classes,
            candidates=count if candidates is None else candidates,
            batch_size=subject.batch_size,
            trials=trials,
            rest=rest,
            one_class=one_class,
            local=subject.local,
            generator=numbered_stream(self.seed, STREAM),
        )

    @property
    def has_amount(self) -> bool:
        """Whether the defense has a scale or a ratio to sweep over."""
        return isinstance(self.defense, (PruningDefense, NoiseDefense))

    def sweep(self) -> list[Defense]:
        """The defense at other scales, or at other ratios if it prunes."""
        defense = self.defense
        if isinstance(defense, PruningDefense):
            return [
                replace(defense, ratio=r, utility_budget=None, target_error=None) for r in RATIOS
            ]
        if isinstance(defense, NoiseDefense):
            own = _scale(defense, self.moments, self.source)
            return [
                replace(defense, scale=own * f, utility_budget=None, target_error=None)
                for f in FACTORS
            ]
        raise ValueError(
            "Parameter `spec` should be a defense with a scale or a ratio to sweep over. Found"
            f" {type(defense).__name__}. Take another, or ask for its one `point`."
        )


def amount_of(defense: Defense) -> float | None:
    """The scale, the ratio or the step that it was given."""
    value = None if defense.about.amount is None else getattr(defense, defense.about.amount)
    return None if value is None else float(value)


def draw_sweep(points: Sequence[BoundPoint], path: Path) -> None:
    """The bounds over the amount, as a picture."""
    figure = new_figure(6, 4)
    axis = figure.subplots()
    shown = [p for p in points if p.bound is not None]
    amounts = [p.amount or 0.0 for p in shown]
    method = shown[0].bound.method if shown and shown[0].bound else "full"
    fails = "" if all(p.bound.holds for p in shown if p.bound) else ", no guarantee"
    errors = [p.bound.mse for p in shown if p.bound]
    axis.plot(amounts, errors, "o-", label=f"{method} bound{fails}")
    if method != "trace":
        axis.plot(amounts, [p.bound.trace_mse for p in shown if p.bound], "s--", label="trace")
    ratio = points[0].amount_name == "ratio"
    axis.set(
        xlabel="share of entries pruned" if ratio else "scale of the noise",
        ylabel="least mean squared error per entry",
        title=shown_name(points[0].defense),
        xscale="linear" if ratio else "log",
        yscale="log" if shown else "linear",
    )
    if shown:
        axis.legend(title=shown[0].bound.prior if shown[0].bound else None)
    save_figure(figure, path, dpi=120, tight=True)


def _not_planned_from(subject: Audited) -> Batch:
    """The public examples but for the last, of which plans are made; the private without any."""
    if subject.public is None:
        return subject.data.inputs, subject.data.targets
    inputs, targets = subject.public
    left = len(inputs) - POPULATION * subject.batch_size
    return (inputs[:left], targets[:left]) if 2 * left > len(inputs) else (inputs, targets)


def _power(moments: Moments) -> float:
    return float(total(moments.squared_values.values()))


def _scale(defense: NoiseDefense, moments: Moments, source: Given | None) -> float:
    std = mechanism_for(defense, moments, source).std
    assert isinstance(std, dict)
    squares = float(total(s.square() for s in std.values()))
    return math.sqrt(squares / moments.size)
