"""The layout that all charts share."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

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
