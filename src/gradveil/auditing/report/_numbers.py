"""Numbers as the report prints them: three significant digits, and never a bare NaN."""

import math

from gradveil.scoring import Interval

ABSENT = "–"


def number(value: float | None) -> str:
    """Three significant digits.

    >>> [number(v) for v in (0.0, 0.02397, 12.345, -0.5, 1234.5, 0.000123, float("inf"), None)]
    ['0', '0.0240', '12.3', '-0.500', '1,234', '1.23e-4', 'infinite', '–']
    """
    if value is None:
        return ABSENT
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e7 else _scientific(value)
    return f"{value:#.3g}".rstrip(".") if abs(value) >= 1e-3 else _scientific(value)


def interval(estimate: Interval | None) -> str:
    """The ends of an interval, or nothing where both are the mean.

    >>> interval(Interval(0.5, 0.41, 0.6)), interval(Interval(0.5, 0.5, 0.5))
    ('[0.410, 0.600]', '')
    """
    if estimate is None or estimate.low == estimate.high:
        return ""
    return f"[{number(estimate.low)}, {number(estimate.high)}]"


def estimate(value: Interval | None) -> str:
    """The mean and, where there is one, its interval.

    >>> estimate(Interval(0.5, 0.41, 0.6))
    '0.500 [0.410, 0.600]'
    """
    return ABSENT if value is None else f"{number(value.mean)} {interval(value)}".strip()


def percent(share: float | None) -> str:
    """A share in percent.

    >>> percent(0.975), percent(1.0), percent(0.0004), percent(None)
    ('97.5 %', '100 %', '0.0400 %', '–')
    """
    return ABSENT if share is None else f"{number(100 * share)} %".replace(".0 %", " %")


def size(count: int) -> str:
    """A number of bytes.

    >>> size(512), size(478120), size(3_200_000)
    ('512 B', '478 kB', '3.20 MB')
    """
    for power, unit in ((2, "MB"), (1, "kB")):
        if count >= 1000**power:
            return f"{number(count / 1000**power)} {unit}"
    return f"{count} B"


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "batch"), plural(2, "batch"), plural(3, "seed"), plural(1000, "entry")
    ('1 batch', '2 batches', '3 seeds', '1,000 entries')
    """
    return f"{count:,} {noun if count == 1 else _many(noun)}"


def _many(noun: str) -> str:
    if noun.endswith("y"):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith("ch") else f"{noun}s"


def _scientific(value: float) -> str:
    digits, power = f"{value:.2e}".split("e")
    return f"{digits}e{int(power)}"
