"""Which answers, moments and attacks the report speaks of, and how defenses look in it.

A family (a classical defense and its optimal twin) shares a hue; the optimal one is filled, its
twin open. The hues are those of Okabe and Ito whose contrast is at least 3 on white and on the
dark background, so that charts need no second palette."""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from gradveil.catalog import shown_name

from .._result import (
    Answer,
    AuditResult,
    Curve,
    DefenseResult,
    Frontier,
    Leak,
    Point,
    ToldApart,
)

COPY, RECOGNISABLE, NOTHING = 0.1, 0.4, 0.9
"""Squared error over that of a guess (the mean of public examples): up to `COPY` an image counts as
a near copy, up to `RECOGNISABLE` as recognisable, from `NOTHING` on as no further than the guess,
in between as blurred. On MNIST a guess has about 12 dB, so these are about 22, 16 and 12 dB."""

GREY = "#808080"
HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A7300", "#7B68C8")


def grade(ratio: float) -> str:
    """ "copy", "recognisable", "blurred" or "nothing", from the error over that of a guess."""
    for name, limit in (("copy", COPY), ("recognisable", RECOGNISABLE), ("blurred", NOTHING)):
        if ratio <= limit:
            return name
    return "nothing"


def main_answer(frontier: Frontier) -> Answer | None:
    """The first that is reached; the first of all if none is; `None` without answers."""
    reached = (answer for answer in frontier.answers if answer.reached)
    return next(reached, next(iter(frontier.answers), None))


def answered(frontier: Frontier, answer: Answer | None) -> tuple[Curve, Point] | None:
    """The measured point of an answer with its curve."""
    if answer is None or not answer.defense:
        return None
    same = [pair for pair in frontier.points() if pair[1].defense == answer.defense]
    named = [pair for pair in same if pair[0].name == answer.name]
    return next(iter(named or same), None)


def strongest_leak(point: Point) -> Leak | None:
    """The moment at which the strongest attack left the least error."""
    known = [leak for leak in point.leaks if leak.error is not None]
    return min(known, key=lambda leak: leak.error.mean if leak.error else 0.0, default=None)


def most_told(point: Point) -> ToldApart | None:
    """The moment at which candidates are told apart most often."""
    known = [leak.told_apart for leak in point.leaks if leak.told_apart]
    return max(known, key=lambda told: told.rate.mean, default=None)


def every_point(frontier: Frontier) -> list[Point]:
    """The undefended one first."""
    return [frontier.undefended, *(point for _, point in frontier.points())]


def attack_names(result: AuditResult) -> dict[str, str]:
    """A short name for each attack's specification: without arguments where that is unique."""
    specs = list(dict.fromkeys(a.attack for d in result.defenses for a in d.attacks))
    short = [shown_name(spec) for spec in specs]
    return {s: n if short.count(n) == 1 else s for s, n in zip(specs, short, strict=True)}


class Look(NamedTuple):
    """The colour of a defense, and whether its marks are filled and its lines solid."""

    color: str
    filled: bool


S = TypeVar("S", bound=Curve | DefenseResult)


def families(defenses: Iterable[S]) -> list[tuple[S, ...]]:
    """The defenses, twins together, in the order in which they first occur.

    Of several of one family, the first classical and the first optimal one go together, then the
    second ones, and so on: a group holds at most one of each.
    """
    counts: dict[tuple[str, bool], int] = {}
    groups: dict[tuple[str, int], list[S]] = {}
    for defense in defenses:
        family = defense.family or defense.name
        kind = family, defense.twin is None
        counts[kind] = counts.get(kind, 0) + 1
        groups.setdefault((family, counts[kind]), []).append(defense)
    return [tuple(group) for group in groups.values()]


def twins(result: AuditResult) -> list[tuple[DefenseResult, DefenseResult]]:
    """Each optimal defense behind its own classical counterpart, where both were audited."""
    pairs = [group for group in families(result.defenses) if len(group) == 2]
    ordered = [(b, a) if a.twin else (a, b) for a, b in pairs]
    return [(a, b) for a, b in ordered if shown_name(a.defense) == b.twin]


def looks(result: AuditResult) -> dict[str, Look]:
    """The look of each defense by name; one of a curve has that curve's."""
    curves = result.frontier.curves
    names = {curve.name for curve in curves}
    others = [d for d in result.defenses if d.name not in names]
    found = {d.name: Look(GREY, True) for d in others if d.is_undefended}
    styled: list[Curve | DefenseResult] = [*curves, *(d for d in others if not d.is_undefended)]
    for place, group in enumerate(families(styled)):
        for one in group:
            filled = one.twin is not None or len(group) == 1
            found[one.name] = Look(HUES[place % len(HUES)], filled)
    return found
