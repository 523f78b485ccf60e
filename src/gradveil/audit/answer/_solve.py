"""Finds the cheapest setting that reaches a goal, measuring more where it is needed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradveil.catalog import build_defense
from gradveil.defenses import PrivateNoise
from gradveil.privacy import epsilon_after, epsilon_on_grid, solve_noise_multiplier

from .._result import Point
from ..measure import Axis, Search
from ._curves import hidden
from ._goals import Goal, Wish

SHORTLIST = 3
"""Defenses whose strength is refined for one goal: those that lose least so far."""
REFINED = 0.12
"""Powers of ten between a setting that reaches a goal and one that does not, when to stop."""
REFINEMENTS, TRIES = 1, 8
"""Waves of refinement, and settings that are looked at later in their training."""


@dataclass(frozen=True)
class Setting:
    """A defense at a strength, with what was measured."""

    axis: Axis
    strength: float
    point: Point


@dataclass
class Solved:
    """What was found for one wish."""

    wish: Wish
    judged: bool = True
    """Whether the attacks can judge the model, where a goal is about what they rebuild."""
    best: Setting | None = None
    """Reaches all goals."""
    nearest: Setting | None = None
    """Where none does: what reaches the goals on leakage at the least loss, as far as was seen."""
    within_cost: Setting | None = None
    """And what hides most within the goals on the loss."""
    equal: tuple[str, ...] = ()
    closest: dict[Goal, Setting] = field(default_factory=dict)
    """What comes nearest to each goal alone."""
    refused: set[tuple[str, float]] = field(default_factory=set)
    """Settings that miss the goals later in their training."""


def solve_wishes(
    search: Search, axes: Sequence[Axis], wishes: Sequence[Wish], can_judge: bool
) -> list[Solved]:
    """The cheapest setting for each wish; all are measured together, wave by wave."""
    formal = [pair for wish in wishes for pair in _formal(search, axes, wish)]
    for turn in range(REFINEMENTS):
        wanted = [pair for wish in wishes for pair in _refined(search, axes, wish)]
        search.measure("where curves meet the goals", wanted if turn else [*formal, *wanted])
    solved = [Solved(wish, judged=can_judge or not wish.needs_attacks) for wish in wishes]
    moments = search.plan.moments
    for _ in range(TRIES):
        for one in solved:
            if one.judged:
                _choose(search, axes, one, can_judge)
        chosen = [one.best for one in solved if one.best is not None]
        later = search.cells([(s.axis, s.strength) for s in chosen], moments)
        details = [search.plan.detail(s.point.defense) for s in chosen]
        search.run("later in the training", [*later, *details])
        if not [one for one in solved if _refuse(search, one)]:
            return solved
    for one in solved:  # what was not looked at later in its training is not recommended
        if one.best is not None and (one.best.axis.name, one.best.strength) in one.refused:
            one.best = None
    return solved


def _formal(search: Search, axes: Sequence[Axis], wish: Wish) -> list[tuple[Axis, float]]:
    """The noise multiplier at which the accountant gives ε, for each defense that has one."""
    limits = [goal.limit for goal in wish.goals if goal.is_formal]
    if not limits:
        return []
    releases, wanted = search.plan.releases, []
    for axis in axes:
        defense = build_defense(axis.at(0.0), allow_imports=True)
        if not isinstance(defense, PrivateNoise) or axis.swept != "noise_multiplier":
            continue
        epsilon_of = epsilon_on_grid if defense.grid else epsilon_after
        rate, rounds, delta = releases.sample_rate, releases.rounds, releases.delta
        z = solve_noise_multiplier(min(limits), delta, rate, rounds)
        while epsilon_of(axis.amount(axis.strength(z)), rate, rounds, delta) > min(limits):
            z *= 1.002
        wanted.append((axis, axis.strength(axis.amount(axis.strength(z)))))
    return wanted


def _refined(search: Search, axes: Sequence[Axis], wish: Wish) -> list[tuple[Axis, float]]:
    """One more strength for the defenses that lose least where they reach the goals."""
    if any(goal.is_formal for goal in wish.goals):
        return []
    found = []
    for axis in axes:
        bracket = _bracket(search, axis, wish)
        if axis.swept and bracket is not None:
            found.append(bracket)
    found.sort(key=lambda bracket: _cost(bracket[0]))
    return [
        (holds.axis, holds.axis.within((fails.strength + holds.strength) / 2))
        for holds, fails in found[:SHORTLIST]
        if abs(fails.strength - holds.strength) > REFINED
    ]


def _bracket(search: Search, axis: Axis, wish: Wish) -> tuple[Setting, Setting] | None:
    """Neighbours, one that reaches the goals and one that does not."""
    settings = _settings(search, axis)
    leaks = bool(wish.of_leakage)
    ordered = list(reversed(settings)) if leaks else settings
    reached = wish.protects if leaks else wish.is_cheap
    last = None
    for one in ordered:
        if not reached(one.point):
            return None if last is None else (last, one)
        last = one
    return None


def _choose(search: Search, axes: Sequence[Axis], solved: Solved, can_judge: bool) -> None:
    """The cheapest that reaches all goals; without goals on leakage, what hides most."""
    wish = solved.wish
    every = [one for axis in axes for one in _settings(search, axis)]
    allowed = [s for s in every if (s.axis.name, s.strength) not in solved.refused]
    sound = {(axis.name, one.strength) for axis in axes for one in _protecting(search, axis, wish)}
    protect = [s for s in allowed if wish.of_leakage and (s.axis.name, s.strength) in sound]
    cheap = [s for s in allowed if wish.is_cheap(s.point)] if wish.of_cost else []
    solved.closest = {goal: found for goal in wish.goals if (found := _closest(goal, every))}
    protect = [s for s in protect if math.isfinite(_cost(s)) or s.point.loss is None]
    solved.nearest = min(protect, key=_cost, default=None)
    solved.within_cost = max(cheap, key=lambda s: (_hidden(s, can_judge), -_cost(s)), default=None)
    if not wish.of_leakage:
        solved.best = solved.within_cost
        return
    both = [s for s in protect if wish.is_cheap(s.point)]
    solved.best = min(both, key=_cost, default=None)
    solved.equal = _not_told_apart(solved.best, both)


def _protecting(search: Search, axis: Axis, wish: Wish) -> list[Setting]:
    """Those that reach the goals on leakage, as all stronger ones do.

    Who has the weaker message can make the stronger one of it (add noise, prune more). So a weak
    setting that looks better than a stronger one was not attacked well enough.
    """
    found: list[Setting] = []
    for one in reversed(_settings(search, axis)):
        if not wish.protects(one.point):
            break
        found.append(one)
    return found


def _closest(goal: Goal, settings: Sequence[Setting]) -> Setting | None:
    """The setting with the least excess over a goal."""
    rated = [(goal.value(s.point), s) for s in settings]
    known = [(goal.excess(value), s) for value, s in rated if value is not None]
    return min(known, key=lambda pair: pair[0])[1] if known else None


def _refuse(search: Search, solved: Solved) -> bool:
    """Whether the chosen setting misses its goals later in the training, and is given up."""
    best = solved.best
    if best is None:
        return False
    now = search.points(best.axis).get(best.strength)
    seen = () if now is None else tuple(leak.round for leak in now.leaks)
    measured = any(not goal.is_formal for goal in solved.wish.of_leakage)
    looked = not measured or seen == search.plan.moments
    if looked and now is not None and solved.wish.protects(now) and solved.wish.is_cheap(now):
        return False
    if solved.wish.of_leakage:  # weaker ones would not do either
        weak = [s for s in search.points(best.axis) if s <= best.strength]
    else:
        weak = [best.strength]
    solved.refused |= {(best.axis.name, strength) for strength in weak}
    return True


def _not_told_apart(best: Setting | None, others: Sequence[Setting]) -> tuple[str, ...]:
    """Other defenses that reach the goals, with a loss whose interval overlaps the best one's."""
    if best is None or best.point.loss is None:
        return ()
    limit = best.point.loss.high
    near = [s for s in others if s.point.loss is not None and s.point.loss.low <= limit]
    return tuple(dict.fromkeys(s.axis.name for s in near if s.axis.name != best.axis.name))


def _settings(search: Search, axis: Axis) -> list[Setting]:
    return [Setting(axis, strength, point) for strength, point in search.points(axis).items()]


def _cost(setting: Setting) -> float:
    loss = setting.point.loss
    return float("inf") if loss is None else loss.mean


def _hidden(setting: Setting, can_judge: bool) -> float:
    found = hidden(setting.point, can_judge)
    return -1.0 if found is None else found
