"""From points to answers: the cheapest setting for each goal, and which strengths come next."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

from gradveil.privacy import solve_noise_multiplier

from ._result import Point
from ._settings import COPY, NOTHING, RECOGNISABLE, Goal
from .measure import Axis, Search

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
    def cost(self) -> float:
        """The loss after training; infinite if that is not known."""
        loss = self.point.loss
        return math.inf if loss is None else loss.mean


@dataclass
class Wish:
    """One or more goals that are to be met at once, and what was found for them."""

    title: str
    goals: tuple[Goal, ...]
    judged: bool = True
    """Whether the attacks can judge the model, where a goal is about what they rebuild."""
    best: Setting | None = None
    nearest: Setting | None = None
    """Where none does: what reaches the goals on leakage at the least loss, as far as was seen."""
    within_cost: Setting | None = None
    """And what hides most within the goals on the loss."""
    equal: tuple[str, ...] = ()
    closest: dict[Goal, Setting] = field(default_factory=dict)
    """What comes nearest to each goal alone."""
    refused: list[Setting] = field(default_factory=list)
    """Settings that miss the goals later in their training."""

    @property
    def shown(self) -> Setting | None:
        """The answer, or what comes nearest to it."""
        return self.best or self.nearest or self.within_cost

    @property
    def of_leakage(self) -> tuple[Goal, ...]:
        """Those on what leaks, ε included."""
        return tuple(goal for goal in self.goals if not goal.is_cost)

    @property
    def of_cost(self) -> tuple[Goal, ...]:
        """Those on what training loses."""
        return tuple(goal for goal in self.goals if goal.is_cost)

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
        "Hardly anyone identified": Goal("identified", 0.1),
        "At most every second identified": Goal("identified", 0.5),
    }
    if can_judge:
        levels = {
            "Attacks no better than a guess": Goal("error", NOTHING),
            "Blurred at most": Goal("error", RECOGNISABLE),
        }
    levels["Formal: differential privacy"] = Goal("epsilon", 8.0)
    return [Wish(title, (goal,)) for title, goal in levels.items()]


def solve_wishes(
    search: Search, axes: Sequence[Axis], wishes: Sequence[Wish], can_judge: bool
) -> None:
    """The cheapest setting for each wish; all are measured together, wave by wave."""
    wanted = [pair for wish in wishes for pair in _formal(search, axes, wish)]
    wanted += [pair for wish in wishes for pair in _refined(search, axes, wish)]
    search.measure("where curves meet the goals", wanted)
    for wish in wishes:
        wish.judged = can_judge or all(g.measure not in ("psnr", "error") for g in wish.goals)
    for _ in range(TRIES):
        for wish in wishes:
            if wish.judged:
                _choose(search, axes, wish, can_judge)
        chosen = [(one.best.axis, one.best.strength) for one in wishes if one.best is not None]
        search.measure("later in the training", chosen, search.laboratory.moments)
        if not [wish for wish in wishes if _refuse(search, wish)]:
            return
    for wish in wishes:  # what was not looked at later in its training is not recommended
        if wish.best in wish.refused:
            wish.best = None


def _formal(search: Search, axes: Sequence[Axis], wish: Wish) -> list[tuple[Axis, float]]:
    """The noise multiplier at which the accountant gives ε, for each defense that has one."""
    limit = min((goal.limit for goal in wish.goals if goal.is_formal), default=None)
    releases, wanted = search.laboratory.settings.releases, []
    for axis in axes:
        if limit is None or axis.swept != "noise_multiplier":
            continue
        z = solve_noise_multiplier(limit, releases.delta, releases.sample_rate, releases.rounds)
        while axis.epsilon(axis.strength(z), releases) > limit:
            z *= 1.002
        wanted.append((axis, axis.strength(axis.amount(axis.strength(z)))))
    return wanted


def _refined(search: Search, axes: Sequence[Axis], wish: Wish) -> list[tuple[Axis, float]]:
    """One more strength for the defenses that lose least where they reach the goals."""
    if any(goal.is_formal for goal in wish.goals):
        return []
    brackets, fits = [], wish.protects if wish.of_leakage else wish.is_cheap
    for axis in axes:
        ordered = _settings(search, axis)
        ordered = ordered[::-1] if wish.of_leakage else ordered
        reached = [*takewhile(lambda setting: fits(setting.point), ordered)]
        if axis.swept and 0 < len(reached) < len(ordered):
            brackets.append((reached[-1], ordered[len(reached)]))
    brackets.sort(key=lambda bracket: bracket[0].cost)
    return [
        (holds.axis, holds.axis.within((fails.strength + holds.strength) / 2))
        for holds, fails in brackets[:SHORTLIST]
        if abs(fails.strength - holds.strength) > REFINED
    ]


def _choose(search: Search, axes: Sequence[Axis], wish: Wish, can_judge: bool) -> None:
    """The cheapest that reaches all goals; without goals on leakage, what hides most.

    A setting protects if all stronger ones do, too. Who has the weaker message can make the
    stronger one of it (add noise, prune more). So a weak setting that looks better than a stronger
    one was not attacked well enough.
    """
    by_axis = [_settings(search, axis) for axis in axes]
    every = [one for settings in by_axis for one in settings]
    sound = [
        one
        for settings in by_axis
        for one in takewhile(lambda setting: wish.protects(setting.point), settings[::-1])
        if wish.of_leakage and (math.isfinite(one.cost) or one.point.loss is None)
    ]
    protect = [one for one in every if one in sound and one not in wish.refused]
    cheap = [s for s in every if wish.is_cheap(s.point) and s not in wish.refused and wish.of_cost]
    for goal in wish.goals:
        rated = [(goal.excess(v), s) for s in every if (v := goal.value(s.point)) is not None]
        if rated:
            wish.closest[goal] = min(rated, key=lambda pair: pair[0])[1]
    wish.nearest = min(protect, key=lambda s: s.cost, default=None)
    wish.within_cost = max(
        cheap, key=lambda s: (hidden(s.point, can_judge) or 0.0, -s.cost), default=None
    )
    if not wish.of_leakage:
        wish.best = wish.within_cost
        return
    both = [s for s in protect if wish.is_cheap(s.point)]
    wish.best = min(both, key=lambda s: s.cost, default=None)
    wish.equal = _not_told_apart(wish.best, both)


def _refuse(search: Search, wish: Wish) -> bool:
    """Whether the chosen setting misses its goals later in the training, and is given up."""
    best = wish.best
    if best is None:
        return False
    measured = any(not goal.is_formal for goal in wish.of_leakage)
    looked = tuple(leak.round for leak in best.point.leaks) == search.laboratory.moments
    reached = wish.protects(best.point) and wish.is_cheap(best.point)
    if reached and (looked or not measured):
        return False
    weaker = [s for s in _settings(search, best.axis) if s.strength < best.strength]
    # weaker ones would not do either
    wish.refused += [best, *(weaker if wish.of_leakage else [])]
    return True


def _not_told_apart(best: Setting | None, others: Sequence[Setting]) -> tuple[str, ...]:
    """Other defenses that reach the goals, with a loss whose interval overlaps the best one's."""
    if best is None or best.point.loss is None:
        return ()
    limit, own = best.point.loss.high, best.axis.name
    near = [s.axis.name for s in others if (loss := s.point.loss) and loss.low <= limit]
    return tuple(name for name in dict.fromkeys(near) if name != own)


def _settings(search: Search, axis: Axis) -> list[Setting]:
    """From the weakest to the strongest."""
    return [Setting(axis, strength, search) for strength in search.points(axis)]


GAP = 0.2
"""Two neighbours that are nearer than that need no point in between."""
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


def next_strength(axis: Axis, known: Mapping[float, float]) -> float | None:
    """A further strength, from what is hidden at those that are done; `None`: none is needed.

    First the ends are moved out until they are reached, then the widest gap is cut in two.
    """
    if not axis.swept or not known:
        return None
    order = sorted(known)
    first, last = order[0], order[-1]
    if known[last] < NOTHING and last < axis.start[-1] + REACH:
        further = axis.within(last + 1)
        return None if further in known else further
    gaps = [(abs(known[b] - known[a]), (a + b) / 2) for a, b in pairwise(order)]
    gap, middle = max(gaps, default=(0.0, first))
    lower = axis.within(first - 1)
    if known[first] > COPY and gap < 0.5 and first > axis.start[0] - REACH and lower not in known:
        return lower
    return middle if gap >= GAP else None
