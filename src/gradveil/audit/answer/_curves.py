"""Which strengths to measure next, and which curves lose against others everywhere."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

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
        strength = _next(axis, known)
        if strength is None or strength in known:
            break
        chosen.append(strength)
        known[strength] = _expected(known, strength)
    return chosen


def _next(axis: Axis, known: Mapping[float, float]) -> float | None:
    order = sorted(known)
    if known[order[-1]] < NOTHING and order[-1] < axis.start[-1] + REACH:
        return axis.within(order[-1] + 1)
    gaps = [(abs(known[b] - known[a]), a, b) for a, b in pairwise(order)]
    widest = max(gaps, default=(0.0, 0.0, 0.0))
    if known[order[0]] > COPY and widest[0] < 0.5 and order[0] > axis.start[0] - REACH:
        lower = axis.within(order[0] - 1)
        if lower not in known:
            return lower
    return (widest[1] + widest[2]) / 2 if widest[0] >= GAP else None


def _expected(known: Mapping[float, float], strength: float) -> float:
    order = sorted(known)
    if strength < order[0]:
        return known[order[0]] - STEP
    if strength > order[-1]:
        return known[order[-1]] + STEP
    below = max(s for s in order if s <= strength)
    above = min(s for s in order if s >= strength)
    return (known[below] + known[above]) / 2


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
    inside = [(h, p) for h, p in worse if COPY < h < NOTHING]
    pairs = [(_loss_at(better, h), p) for h, p in inside]
    if not pairs or any(low is None for low, _ in pairs):
        return False
    clear = False
    for ends, point in pairs:
        assert ends is not None
        assert point.loss is not None
        if not ends[0] <= point.loss.mean:  # NaN between a finite loss and an infinite one
            return False
        clear |= ends[1] < point.loss.low - MARGIN * abs(point.loss.mean)
    return clear


def _loss_at(values: Values, wanted: float) -> tuple[float, float] | None:
    """Mean and upper end of the loss where so much stays hidden; `None` beyond the last point."""
    above = [(h, p.loss) for h, p in values if h >= wanted and p.loss is not None]
    below = [(h, p.loss) for h, p in values if h < wanted and p.loss is not None]
    if not above:
        return None
    (high, upper) = above[0]
    if not below:
        return upper.mean, upper.high
    (low, lower) = below[-1]
    share = (wanted - low) / (high - low) if high > low else 1.0
    return (
        lower.mean + share * (upper.mean - lower.mean),
        lower.high + share * (upper.high - lower.high),
    )
