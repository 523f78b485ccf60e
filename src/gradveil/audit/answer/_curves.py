"""Which strengths to measure next, and which curves lose against others everywhere."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from .._result import Leak, Point
from ..measure import Axis

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
    return None if not point.leaks else hidden_of(point.leaks[0], can_judge)


def hidden_of(leak: Leak, can_judge: bool) -> float | None:
    """The same of one moment."""
    if can_judge and leak.error is not None:
        return min(1.0, max(0.0, leak.error.mean))
    if leak.told_apart is None:
        return None
    told = leak.told_apart
    return min(1.0, max(0.0, (1 - told.rate.mean) / (1 - told.chance)))


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


MARGIN = 0.02
"""The share of a loss by which intervals are to be apart: they do not hold what batches do."""

Values = list[tuple[float, Point]]


def dominated(curves: Mapping[str, Sequence[Point]], can_judge: bool) -> dict[str, str]:
    """The name of a defense that dominates, for each one that is dominated.

    One dominates another if it loses no more, in the mean, at every measured point of the other
    that lies between near copies and nothing, and clearly less at one of them (separate 95 %
    intervals, 2 % of the loss apart). Between its own points losses are interpolated.
    """
    values = {name: _values(points, can_judge) for name, points in curves.items()}
    found: dict[str, str] = {}
    for name, own in values.items():
        others = [other for other in values if other != name and found.get(other) != name]
        better = [other for other in others if _dominates(values[other], own)]
        if better:
            found[name] = better[0]
    return found


def _values(points: Sequence[Point], can_judge: bool) -> Values:
    rated = [(hidden(point, can_judge), point) for point in points if point.loss is not None]
    return sorted(((h, p) for h, p in rated if h is not None), key=lambda pair: pair[0])


def _dominates(better: Values, worse: Values) -> bool:
    """Nothing is known beyond the last point, nor between a finite loss and an infinite one."""
    inside = [(h, p.loss) for h, p in worse if COPY < h < NOTHING and p.loss is not None]
    if not inside or not better:
        return False
    at, known = [h for h, _ in inside], [h for h, _ in better]
    means, highs = (
        np.interp(at, known, [getattr(p.loss, end) for _, p in better], right=math.nan)
        for end in ("mean", "high")
    )
    no_more = all(m <= loss.mean for m, (_, loss) in zip(means, inside, strict=True))
    ends = zip(highs, inside, strict=True)
    return no_more and any(h < loss.low - MARGIN * abs(loss.mean) for h, (_, loss) in ends)
