"""Goals: what a user wants to reach, as `psnr<=15`, `identified<=10%` or `loss<=+5%`."""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from .._result import Leak, Point

_TEXT = re.compile(r"\s*([a-z]+)\s*(<=|>=|≤|≥)\s*(\+?)\s*([0-9.]+(?:e[-+]?\d+)?)\s*(%|dB|)\s*")

MEASURES = {
    "psnr": ("<=", "dB"),
    "error": (">=", "%"),
    "identified": ("<=", "%"),
    "epsilon": ("<=", ""),
    "loss": ("<=", "%"),
}
"""What goals can be about, on which side of the limit one wants to be, and its unit."""


MOST = sys.float_info.max


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
        shares = self.measure in ("identified", "error")
        least = 1e-3 if self.measure == "epsilon" else 0.0
        if self.measure not in MEASURES or not least <= self.limit <= (1 if shares else MOST):
            raise ValueError(_expected(f"{self.measure} and the limit {self.limit}"))

    @classmethod
    def parse(cls, text: str) -> "Goal":
        """The goal that a text is."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None or found[1] not in MEASURES:
            raise ValueError(_expected(text))
        measure, sign, plus, digits, unit = found.groups()
        side, own = MEASURES[measure]
        try:
            limit = float(digits) / (100 if unit == "%" else 1)
        except ValueError:
            raise ValueError(_expected(text)) from None
        wrong = sign.replace("≤", "<=").replace("≥", ">=") != side or unit not in ("", own)
        if wrong or (plus and measure != "loss") or (own == "%" and not unit and limit > 1):
            raise ValueError(_expected(text))
        return cls(measure, limit)

    def __str__(self) -> str:
        side, unit = MEASURES[self.measure]
        plus = "+" if self.measure == "loss" else ""
        return f"{self.measure}{side}{plus}" + (
            f"{100 * self.limit:.6g}%" if unit == "%" else f"{self.limit:.6g}"
        )

    @property
    def is_cost(self) -> bool:
        """Whether it limits what training loses."""
        return self.measure == "loss"

    @property
    def is_formal(self) -> bool:
        """Whether an accountant decides it, and no measurement."""
        return self.measure == "epsilon"

    def value(self, point: Point, *, mean: bool = False) -> float | None:
        """The point's number, at the worse end of its interval; `None`: it has none."""
        if self.is_formal:
            return point.epsilon
        if self.is_cost:
            extra = point.extra_loss
            return None if extra is None else extra.mean if mean else extra.high
        values = [self._leaked(leak, mean) for leak in point.leaks]
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        return min(known) if self.measure == "error" else max(known)

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
        return self.limit - value if self.measure == "error" else value - self.limit

    def _leaked(self, leak: Leak, mean: bool) -> float | None:
        if self.measure == "identified":
            told = leak.told_apart
            return None if told is None else told.rate.mean if mean else told.rate.high
        interval = leak.psnr if self.measure == "psnr" else leak.error
        if interval is None:
            return None
        if mean:
            return interval.mean
        return interval.low if self.measure == "error" else interval.high

    def words(self, value: float) -> str:
        """A value of this measure, in words."""
        return {
            "psnr": f"{value:.1f} dB",
            "error": f"{value:.0%} of a blind guess's error",
            "identified": f"{value:.0%} identified",
            "epsilon": f"ε = {value:.3g}",
            "loss": f"{value:+.1%} loss",
        }[self.measure]


def _expected(text: object) -> str:
    return (
        "A goal should read psnr<=15, error>=90%, identified<=10%, epsilon<=8 or loss<=+5%. Found"
        f" {text!r}."
    )


@dataclass(frozen=True)
class Wish:
    """One or more goals that are to be met at once."""

    title: str
    goals: tuple[Goal, ...]

    @property
    def of_leakage(self) -> tuple[Goal, ...]:
        """Those on what leaks, ε included."""
        return tuple(goal for goal in self.goals if not goal.is_cost)

    @property
    def of_cost(self) -> tuple[Goal, ...]:
        """Those on what training loses."""
        return tuple(goal for goal in self.goals if goal.is_cost)

    @property
    def needs_attacks(self) -> bool:
        """Whether it is judged by what attacks rebuild."""
        return any(goal.measure in ("psnr", "error") for goal in self.goals)

    def protects(self, point: Point) -> bool:
        """Whether all goals on leakage are reached."""
        return all(goal.is_reached(point) for goal in self.of_leakage)

    def is_cheap(self, point: Point) -> bool:
        """Whether all goals on the loss are reached."""
        return all(goal.is_reached(point) for goal in self.of_cost)


def wishes_of(goals: Sequence[Goal], can_judge: bool) -> list[Wish]:
    """The goals, to be met at once, or three levels: a guess, blurred, formal.

    Where the attacks cannot judge the model, the first two are those of the exact attacker.
    """
    if goals:
        return [Wish(" and ".join(map(str, goals)), tuple(goals))]
    levels = {
        "Attacks no better than a guess": Goal("error", 0.9),
        "Blurred at most": Goal("error", 0.4),
    }
    if not can_judge:
        levels = {
            "Hardly anyone identified": Goal("identified", 0.1),
            "At most every second identified": Goal("identified", 0.5),
        }
    levels["Formal: differential privacy"] = Goal("epsilon", 8.0)
    return [Wish(title, (goal,)) for title, goal in levels.items()]
