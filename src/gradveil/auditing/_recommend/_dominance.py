"""Which defenses lose more than another one at every leakage."""

from collections.abc import Mapping, Sequence

from .._frontier import Point
from ._strengths import COPY, NOTHING, hidden

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
