"""Which strengths to measure next, and the cheapest setting for a goal."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

from gradveil.privacy import solve_noise_multiplier

from .._result import Point
from .._settings import Goal, Wish
from ..measure import Axis, Search

SHORTLIST = 3
"""Defenses whose strength is refined for one goal: those that lose least so far."""
REFINED = 0.12
"""Powers of ten between a setting that reaches a goal and one that does not, when to stop."""
TRIES = 8
"""Settings that are looked at later in their training."""


@dataclass(frozen=True)
class Setting:
    """A defense at a strength, with what is known of it."""

    axis: Axis
    strength: float
    search: Search

    @property
    def point(self) -> Point:
        """What was measured until now."""
        return self.search.points(self.axis)[self.strength]

    @property
    def key(self) -> tuple[str, float]:
        """Its name among others."""
        return self.axis.name, self.strength

    @property
    def cost(self) -> float:
        """The loss after training; infinite if that is not known."""
        loss = self.point.loss
        return math.inf if loss is None else loss.mean


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

    @property
    def shown(self) -> Setting | None:
        """The answer, or what comes nearest to it."""
        return self.best or self.nearest or self.within_cost


def solve_wishes(
    search: Search, axes: Sequence[Axis], wishes: Sequence[Wish], can_judge: bool
) -> list[Solved]:
    """The cheapest setting for each wish; all are measured together, wave by wave."""
    wanted = [pair for wish in wishes for pair in _formal(search, axes, wish)]
    wanted += [pair for wish in wishes for pair in _refined(search, axes, wish)]
    search.measure("where curves meet the goals", wanted)
    solved = [Solved(wish, judged=can_judge or not wish.needs_attacks) for wish in wishes]
    for _ in range(TRIES):
        for one in solved:
            if one.judged:
                _choose(search, axes, one, can_judge)
        chosen = [(one.best.axis, one.best.strength) for one in solved if one.best is not None]
        search.measure("later in the training", chosen, search.laboratory.moments)
        if not [one for one in solved if _refuse(search, one)]:
            return solved
    for one in solved:  # what was not looked at later in its training is not recommended
        if one.best is not None and one.best.key in one.refused:
            one.best = None
    return solved


def _formal(search: Search, axes: Sequence[Axis], wish: Wish) -> list[tuple[Axis, float]]:
    """The noise multiplier at which the accountant gives ε, for each defense that has one."""
    limit = min((goal.limit for goal in wish.goals if goal.is_formal), default=None)
    releases, wanted = search.laboratory.settings.releases, []
    for axis in axes:
        if limit is None or axis.swept != "noise_multiplier":
            continue
        z = solve_noise_multiplier(limit, releases.delta, releases.sample_rate, releases.rounds)
        while (found := axis.privacy(axis.strength(z), releases)) and found.epsilon_rounds > limit:
            z *= 1.002
        wanted.append((axis, axis.strength(axis.amount(axis.strength(z)))))
    return wanted


def _refined(search: Search, axes: Sequence[Axis], wish: Wish) -> list[tuple[Axis, float]]:
    """One more strength for the defenses that lose least where they reach the goals."""
    if any(goal.is_formal for goal in wish.goals):
        return []
    brackets = []
    for axis in axes:
        ordered = _settings(search, axis)
        ordered = ordered[::-1] if wish.of_leakage else ordered
        reached = _reaching(ordered, wish.protects if wish.of_leakage else wish.is_cheap)
        if axis.swept and 0 < len(reached) < len(ordered):
            brackets.append((reached[-1], ordered[len(reached)]))
    brackets.sort(key=lambda bracket: bracket[0].cost)
    return [
        (holds.axis, holds.axis.within((fails.strength + holds.strength) / 2))
        for holds, fails in brackets[:SHORTLIST]
        if abs(fails.strength - holds.strength) > REFINED
    ]


def _choose(search: Search, axes: Sequence[Axis], solved: Solved, can_judge: bool) -> None:
    """The cheapest that reaches all goals; without goals on leakage, what hides most.

    A setting protects if all stronger ones do, too. Who has the weaker message can make the
    stronger one of it (add noise, prune more). So a weak setting that looks better than a stronger
    one was not attacked well enough.
    """
    wish = solved.wish
    by_axis = [_settings(search, axis) for axis in axes]
    every = [one for settings in by_axis for one in settings]
    sound = [one for settings in by_axis for one in _reaching(settings[::-1], wish.protects)]
    protect = [s for s in every if s in sound and s.key not in solved.refused and wish.of_leakage]
    protect = [s for s in protect if math.isfinite(s.cost) or s.point.loss is None]
    cheap = [s for s in every if s.key not in solved.refused and wish.of_cost]
    cheap = [s for s in cheap if wish.is_cheap(s.point)]
    for goal in wish.goals:
        rated = [(goal.excess(v), s) for s in every if (v := goal.value(s.point)) is not None]
        if rated:
            solved.closest[goal] = min(rated, key=lambda pair: pair[0])[1]
    solved.nearest = min(protect, key=lambda s: s.cost, default=None)
    solved.within_cost = max(
        cheap, key=lambda s: (hidden(s.point, can_judge) or 0.0, -s.cost), default=None
    )
    if not wish.of_leakage:
        solved.best = solved.within_cost
        return
    both = [s for s in protect if wish.is_cheap(s.point)]
    solved.best = min(both, key=lambda s: s.cost, default=None)
    solved.equal = _not_told_apart(solved.best, both)


def _reaching(settings: Sequence[Setting], reached: Callable[[Point], bool]) -> list[Setting]:
    """The first ones, up to one that does not reach the goals."""
    return [*takewhile(lambda setting: reached(setting.point), settings)]


def _refuse(search: Search, solved: Solved) -> bool:
    """Whether the chosen setting misses its goals later in the training, and is given up."""
    best, wish = solved.best, solved.wish
    if best is None:
        return False
    measured = any(not goal.is_formal for goal in wish.of_leakage)
    looked = tuple(leak.round for leak in best.point.leaks) == search.laboratory.moments
    reached = wish.protects(best.point) and wish.is_cheap(best.point)
    if reached and (looked or not measured):
        return False
    weaker = [s for s in _settings(search, best.axis) if s.strength < best.strength]
    # weaker ones would not do either
    solved.refused |= {s.key for s in [best, *(weaker if wish.of_leakage else [])]}
    return True


def _not_told_apart(best: Setting | None, others: Sequence[Setting]) -> tuple[str, ...]:
    """Other defenses that reach the goals, with a loss whose interval overlaps the best one's."""
    if best is None or best.point.loss is None:
        return ()
    limit = best.point.loss.high
    near = [s for s in others if s.point.loss is not None and s.point.loss.low <= limit]
    return tuple(dict.fromkeys(s.axis.name for s in near if s.axis.name != best.axis.name))


def _settings(search: Search, axis: Axis) -> list[Setting]:
    """From the weakest to the strongest."""
    return [Setting(axis, strength, search) for strength in search.points(axis)]


COPY, NOTHING = 0.1, 0.9
"""The ends of the range, as shares of what hides everything."""
GAP = 0.2
"""Two neighbours that are nearer than that need no point in between."""
STEP = 0.5
"""What a power of ten beyond the last strength is expected to hide more, at least."""
REACH = 3.0
"""Powers of ten beyond the first strengths that are tried at most."""


def hidden(point: Point, can_judge: bool) -> float | None:
    """What of the inputs stays hidden at the model as given: 0 is nothing, 1 is everything.

    The strongest attack's squared error over that of a blind guess; where attacks cannot judge the
    model, the share in which the exact attacker fails, beyond chance.
    """
    for leak in point.leaks[:1]:
        if can_judge and leak.error is not None:
            return min(1.0, max(0.0, leak.error.mean))
        if (told := leak.told_apart) is not None:
            return min(1.0, max(0.0, (1 - told.rate.mean) / (1 - 1 / told.candidates)))
    return None


def next_strengths(axis: Axis, done: Mapping[float, float], count: int) -> list[float]:
    """Up to so many further strengths, from what is hidden at those that are done.

    First the ends are moved out until they are reached, then the widest gap is cut in two. Each
    choice assumes for the next one that it lies where a straight line puts it.
    """
    known, chosen = dict(done), []
    for _ in range(count if axis.swept and done else 0):
        strength, expected = _next(axis, known)
        if strength in known:
            break
        chosen.append(strength)
        known[strength] = expected
    return chosen


def _next(axis: Axis, known: Mapping[float, float]) -> tuple[float, float]:
    """A strength, and what is expected to be hidden there; a known one where none is needed."""
    order = sorted(known)
    first, last = order[0], order[-1]
    if known[last] < NOTHING and last < axis.start[-1] + REACH:
        return axis.within(last + 1), known[last] + STEP
    gaps = [(abs(known[b] - known[a]), a, b) for a, b in pairwise(order)]
    gap, a, b = max(gaps, default=(0.0, first, first))
    lower = axis.within(first - 1)
    if known[first] > COPY and gap < 0.5 and first > axis.start[0] - REACH and lower not in known:
        return lower, known[first] - STEP
    return ((a + b) / 2, (known[a] + known[b]) / 2) if gap >= GAP else (first, known[first])
