"""What is compared, attacked and asked for in an audit: goals as `psnr<=15`, and `Settings`."""

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gradveil._checks import (
    WrongValue,
    check_count,
    check_kind,
    check_seed,
)
from gradveil.attacks import (
    Adaptive,
    Attack,
    InvertingGradients,
    Peel,
    Regress,
    SpanCheck,
    TabLeak,
    ThreatModel,
    TokenRows,
    Unpool,
)
from gradveil.catalog import build_attack, spec_of
from gradveil.data import Dataset
from gradveil.defenses import Defense
from gradveil.scoring import Interval

from ._result import Leak, Point, Releases

USUAL_DEFENSES = (
    "gradient-noise",
    "optimal-noise",
    "optimal-noise(granularity='layer')",
    "gradient-pruning",
    "optimal-pruning",
    "private-noise",
)
"""What is run over strengths if nothing is asked for."""

STEPS = 100
"""Of the attacks: they show on MNIST what leaks, within minutes."""


COPY, RECOGNISABLE, NOTHING = 0.1, 0.4, 0.9
"""Squared error over that of a guess (the mean of public examples): up to `COPY` an image counts as
a near copy, up to `RECOGNISABLE` as recognisable, from `NOTHING` on as no further than the guess,
in between as blurred. On MNIST a guess has about 12 dB, so these are about 22, 16 and 12 dB."""


class Measure(NamedTuple):
    """What a goal can be about."""

    side: str
    """On which side of the limit one wants to be."""
    unit: str
    words: str
    of: Callable[[Leak], Interval | None] | None = None
    """What leaked at one moment; `None` where that does not decide."""


MEASURES = {
    "psnr": Measure("<=", "dB", "{:.1f} dB", lambda leak: leak.psnr),
    "error": Measure(">=", "%", "{:.0%} of a blind guess's error", lambda leak: leak.error),
    "identified": Measure("<=", "%", "{:.0%} identified", lambda leak: leak.picked),
    "epsilon": Measure("<=", "", "ε = {:.3g}"),
    "loss": Measure("<=", "%", "{:+.1%} loss"),
}

_TEXT = r"\s*{}\s*(?:{})\s*{}\s*((?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*({}|)\s*"


@dataclass(frozen=True)
class Goal:
    """A limit on what leaks, or on what training loses.

    - "psnr": the strongest attack's mean PSNR in dB, at most.
    - "error": its squared error over that of a blind guess, at least; for inputs of any kind.
    - "identified": how often the exact attacker picks the right one of the candidates, at most.
    - "epsilon": ε(δ) over the stated rounds, at most.
    - "loss": the loss after the training over that of the undefended one, minus 1, at most.

    A measured goal is reached where the worse end of the 95 % interval is within the limit, at
    every moment of the training that was looked at.

    >>> Goal.parse("identified <= 10%")
    Goal(measure='identified', limit=0.1)
    >>> str(Goal.parse("loss<=+5%"))
    'loss<=+5%'
    """

    measure: str
    limit: float

    def __post_init__(self) -> None:
        most = 1.0 if self.measure in ("identified", "error") else sys.float_info.max
        least = 1e-3 if self.measure == "epsilon" else 0.0
        if self.measure not in MEASURES or not least <= self.limit <= most:
            raise _wrong(f"{self.measure} and the limit {self.limit}")

    @classmethod
    def parse(cls, text: str) -> "Goal":
        """The goal that a text is."""
        for measure, (side, unit, *_) in MEASURES.items():
            sides = "<=|≤" if side == "<=" else ">=|≥"
            pattern = _TEXT.format(measure, sides, r"\+?" if measure == "loss" else "", unit)
            found = re.fullmatch(pattern, text) if isinstance(text, str) else None
            if found is not None:
                limit = float(found[1]) / (100 if found[2] == "%" else 1)
                if unit != "%" or found[2] or limit <= 1:
                    return cls(measure, limit)
        raise _wrong(repr(text))

    def __str__(self) -> str:
        side, unit, *_ = MEASURES[self.measure]
        limit = f"{100 * self.limit:.6g}%" if unit == "%" else f"{self.limit:.6g}"
        return f"{self.measure}{side}{'+' if self.is_cost else ''}{limit}"

    @property
    def is_cost(self) -> bool:
        """Whether it limits what training loses."""
        return self.measure == "loss"

    @property
    def is_formal(self) -> bool:
        """Whether an accountant decides it, and no measurement."""
        return self.measure == "epsilon"

    def value(self, point: Point) -> float | None:
        """The point's number, at the worse end of its interval; `None`: it has none."""
        if self.is_formal:
            return point.epsilon
        side, _, _, of = MEASURES[self.measure]
        found = [point.extra_loss] if of is None else [of(leak) for leak in point.leaks]
        known = [interval for interval in found if interval is not None]
        if not known or len(known) < len(found):
            return None
        if side == ">=":
            return min(interval.low for interval in known)
        return max(interval.high for interval in known)

    def is_reached(self, point: Point) -> bool:
        """Whether the point is within the limit; not if it was not measured, or rebuilt as a copy.

        A mean over examples can hide the one that was rebuilt: then nothing is protected.
        """
        value = self.value(point)
        if value is None or not math.isfinite(value):
            return False
        copied = self.measure in ("psnr", "error") and any(leak.copies for leak in point.leaks)
        return self.excess(value) <= 0 and not copied

    def excess(self, value: float) -> float:
        """How far a value is beyond the limit; 0 and less: it is within."""
        return (value - self.limit) * (-1 if MEASURES[self.measure].side == ">=" else 1)

    def shown(self, value: float) -> str:
        """A value of this measure, in words."""
        return MEASURES[self.measure].words.format(value)


def _wrong(found: str) -> WrongValue:
    expected = "read psnr<=15, error>=90%, identified<=10%, epsilon<=8 or loss<=+5%"
    return WrongValue("A goal", expected, found)


@dataclass(frozen=True)
class Settings:
    """What an audit compares, attacks and answers.

    Defenses whose amount is left out ("optimal-noise") are run over strengths; those with their
    amounts ("optimal-noise(scale=0.1)") are one point each.
    """

    defenses: Sequence[str | Defense] | None = None
    """Defenses or specifications; the usual ones if `None`. The undefended message is always
    attacked, too: a weak attack would make any defense look good."""
    attacks: Sequence[str | Attack] | None = None
    """Attacks or specifications; if `None` the adaptive one, which knows the defense, or those on
    text and on tables with categories."""
    goals: Sequence[str | Goal] = ()
    """To be met at once, as "psnr<=15" and "loss<=+5%". Three usual levels if there are none, but
    for a comparison at given strengths, which then has no answers."""
    strengths: int = 4
    """Of each defense that is run over strengths, before goals are solved for."""
    threat: ThreatModel = field(default_factory=lambda: ThreatModel(mechanism="known"))
    """What attackers are granted; those that do not use the defense are not told of it."""
    steps: int | None = None
    """Of the attacks; their own if `None`, and 100 of the usual ones."""
    seeds: int = 1
    """How many times each private batch is defended and attacked."""
    training_seeds: int = 3
    """Of the noise of the trainings; 0: nothing is trained."""
    releases: Releases = field(default_factory=Releases)
    seed: int = 0

    def __post_init__(self) -> None:
        lists = {"defenses": "optimal-noise", "attacks": "adaptive", "goals": "psnr<=15"}
        for name, example in lists.items():
            if getattr(self, name) is not None:
                advice = f"Give a list, as ['{example}']."
                check_kind(getattr(self, name), name, (list, tuple), advice)
        for goal in self.wanted:
            check_kind(goal, "goals", Goal, "Use for example 'psnr<=15'.")
        check_count(self.strengths, "strengths")
        check_count(self.seeds, "seeds")
        check_count(self.training_seeds, "training_seeds", least=0)
        check_seed(self.seed)
        if self.steps is not None:
            check_count(self.steps, "steps")
        check_kind(self.threat, "threat", ThreatModel, "As `ThreatModel(labels='unknown')`.")
        check_kind(self.releases, "releases", Releases, "Use for example `Releases(rounds=10)`.")

    @property
    def wanted(self) -> list[Goal]:
        """The goals, parsed."""
        return [Goal.parse(goal) if isinstance(goal, str) else goal for goal in self.goals]

    def chosen_attacks(self, data: Dataset) -> list[Attack]:
        """The attacks that were asked for, or the usual ones for these data."""
        if self.attacks is None:
            usual = default_attacks(STEPS if self.steps is None else self.steps, data)
            return [one for one in usual if one.knows_defense] or usual
        attacks = [build_attack(one) if isinstance(one, str) else one for one in self.attacks]
        for one in attacks:
            check_kind(one, "attacks", Attack, "Derive it from `Attack`, and make an instance.")
        stepless = [one.configured(steps=1) == one.configured(steps=2) for one in attacks]
        if self.steps is not None and attacks and all(stepless):
            found = f"`steps = {self.steps}` with {[spec_of(one) for one in attacks]}"
            raise WrongValue("steps", "be left out for attacks that take none", found)
        return [one.configured(steps=self.steps) for one in attacks]


def default_attacks(steps: int, data: Dataset) -> list[Attack]:
    """The attack that does not know the defense, and the one that does and starts from it.

    Peeling takes messages without noise apart, at little cost for all others. Neither attack ends
    with second-order steps, which cost as much again for messages that leak anyway, and they start
    from noise less often than usual. Tokens and tables with categories have attacks of their own.
    """
    if data.tokens:
        return [TokenRows(), SpanCheck()]
    if data.inputs.dim() == 4:
        unaware = InvertingGradients(
            steps, total_variation=1e-2, peel=Peel(), unpool=Unpool(), regress=Regress()
        )
        return [unaware, Adaptive(unaware, restarts=1, finish=None)]
    unaware = InvertingGradients(steps, total_variation=0.0)
    if data.layout is not None:
        return [unaware, TabLeak(steps=steps, starts=4)]
    return [unaware, Adaptive(unaware, prior=None, restarts=1, finish=None)]
