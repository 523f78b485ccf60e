"""Numbers as the report prints them, and the layout that all charts share."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

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


Figure = dict[str, Any]
STEPS = {1.5: (1, 2, 3, 5, 7), 3.0: (1, 2, 5), math.inf: (1,)}
"""The ticks within a power of ten, by the powers of ten that an axis spans."""
GRID = "rgba(128,128,128,0.25)"


def plain(text: str) -> str:
    """A text that plotly, which reads a little HTML, shows as it is."""
    return escape(text, quote=False)


def log_axis(values: Sequence[float]) -> Figure:
    """A logarithmic axis whose few ticks are written as plain numbers; the values are positive."""
    low, high = (math.log10(pick(values)) for pick in (min, max))
    steps = next(steps for span, steps in STEPS.items() if high - low <= span)
    powers = range(math.floor(low) - 1, math.ceil(high) + 2)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return {"type": "log", "tickmode": "array", "tickvals": ticks, "ticktext": _labels(ticks)}


def _labels(ticks: Sequence[float]) -> list[str]:
    return [f"{tick:.1g}" if tick < 1e5 else f"{tick:.0e}" for tick in ticks]


def layout(x: str, y: str) -> Figure:
    """Axes with titles on a clear background; text colours are left to the style sheet."""

    def axis(title: str) -> Figure:
        return {
            "title": {"text": title, "standoff": 12, "font": {"size": 13}},
            "automargin": True,
            "zeroline": False,
            "fixedrange": True,
            "gridcolor": GRID,
            "tickfont": {"size": 12},
        }

    return {
        "xaxis": axis(x),
        "yaxis": axis(y),
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "#22272e", "bordercolor": "#22272e", "align": "left"}
        | {"font": {"color": "#ffffff", "size": 13}},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 56, "r": 12, "t": 12, "b": 52},
    }
