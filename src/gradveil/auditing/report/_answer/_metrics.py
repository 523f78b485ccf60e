"""The choices for the height of the frontier: what counts as leakage, and how it is drawn.

More leakage is always drawn higher. A height need not be proportional to its value: the ticks say
the value. So the undefended point, far from all others, takes no more room than they do.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradveil.auditing._frontier import Frontier, Point
from gradveil.scoring import Interval

from .._numbers import number
from .._verdict import COPY, NOTHING, RECOGNISABLE
from ._facts import most_told, strongest_leak

IMAGES = ("near copies", "recognisable", "blurred", "nothing beyond a guess")
VALUES = ("near copies", "much recovered", "some recovered", "nothing beyond a guess")


@dataclass(frozen=True)
class Metric:
    """One kind of leakage."""

    key: str
    label: str
    """In the switch."""
    title: str
    """Of the axis."""
    value: Callable[[Point], Interval | None]
    height: Callable[[float], float]
    """Where a value is drawn; more leakage lies higher."""
    show: Callable[[float], str]
    ticks: tuple[float, ...]
    ends: tuple[float, float]
    """The lowest and the highest value that the axis shows."""
    bands: tuple[tuple[float, float, str], ...] = ()
    """(from, to, words)."""
    line: tuple[float, str] | None = None
    """A value to compare with, and its name."""


def share(value: float) -> str:
    """A share in percent, short: for axes and sentences.

    >>> [share(value) for value in (0.0, 1e-8, 0.01, 0.0167, 0.808, 1.08, 10.0)]
    ['0 %', '< 0.01 %', '1 %', '1.7 %', '81 %', '108 %', '1,000 %']
    """
    percents = 100 * value
    if 0 < percents < 0.01:
        return "< 0.01 %"
    return f"{percents:,.0f} %" if percents >= 9.95 else f"{percents:.2g} %"


def metrics(frontier: Frontier, is_image: bool) -> list[Metric]:
    """Those that were measured, the strongest attack first."""
    points = [frontier.undefended, *(point for _, point in frontier.points())]
    candidates = (attack_metric(is_image), *_told(points), _reference(points))
    known = (metric for metric in candidates if metric is not None)
    return [metric for metric in known if any(metric.value(point) for point in points)]


def error_height(error: float) -> float:
    """0 at a copy, -1 at a guess; roots below (a copy and a blur differ), logarithms above.

    >>> [round(error_height(error), 2) for error in (0.0, 0.01, 0.25, 1.0, 10.0)]
    [-0.0, -0.1, -0.5, -1.0, -1.15]
    """
    if error <= 1:
        return -math.sqrt(max(error, 0.0))
    return -1 - 0.15 * min(math.log10(error), 1.0)


def attack_metric(is_image: bool) -> Metric:
    """The strongest attack's error, from copies down to nothing beyond a guess."""
    edges = (0.0, COPY, RECOGNISABLE, NOTHING, 10.0)
    words = IMAGES if is_image else VALUES
    return Metric(
        "attack",
        "what the strongest attack rebuilt",
        "error left, in % of a blind guess's",
        lambda point: found.error if (found := strongest_leak(point)) else None,
        error_height,
        lambda value: share(value) if value < edges[-1] else f"≥ {share(value)}",
        (0.0, 0.01, COPY, RECOGNISABLE, NOTHING, 10.0),
        (10.0, 0.0),
        tuple(zip(edges, edges[1:], words, strict=False)),
    )


def _told(points: Sequence[Point]) -> list[Metric]:
    known = [told for point in points if (told := most_told(point))]
    if not known:
        return []
    count = max(told.candidates for told in known)
    shares = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    most = math.log2(count)
    bits = tuple(float(bit) for bit in range(int(most) + 1))
    return [
        Metric(
            "share",
            f"who is picked out of {count}: share",
            f"right one of {count} candidates picked, in % of trials",
            lambda point: found.rate if (found := most_told(point)) else None,
            float,
            share,
            shares,
            (0.0, 1.0),
            line=(1 / count, "chance"),
        ),
        Metric(
            "bits",
            f"who is picked out of {count}: bits",
            "bits that a message tells of who is in it",
            lambda point: found.bits if (found := most_told(point)) else None,
            float,
            number,
            bits,
            (0.0, most),
            line=(most, "everything"),
        ),
    ]


def _reference(points: Sequence[Point]) -> Metric | None:
    values = [point.bound for point in points if point.bound]
    if not values:
        return None
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return Metric(
        "bound",
        "reference error (theory)",
        "reference error per entry, normalised units",
        _reference_error,
        lambda value: -math.log10(value),
        number,
        tuple(10.0**power for power in powers),
        (1.3 * high, low / 1.3),
    )


def _reference_error(point: Point) -> Interval | None:
    return Interval(point.bound, point.bound, point.bound) if point.bound else None
