"""Means against a level or a round, with their intervals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradveil.studies.runner import Entry
from gradveil.studies.shared import label_of, number

from ._panels import COLOURS, LINES, MARKERS, OTHERS, apart, mark_levels, move_aside, no_cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Entry]


def level_curve(
    axis: "Axes", rows: Sequence[Row], label: str, aside: float = 0.0, **style: Any
) -> None:
    """Means with error bars over `level`; missing intervals leave the bar out.

    `aside` is how many points to the right it is drawn (`apart`).
    """
    rows = sorted(rows, key=lambda row: number(row["level"]))
    x = [number(row["level"]) for row in rows]
    y = [number(row["mean"]) for row in rows]
    drawn = axis.errorbar(x, y, yerr=bars(rows), label=label, capsize=2.5, elinewidth=0.9, **style)
    move_aside(axis, drawn, aside)


def bars(rows: Sequence[Row], name: str = "") -> list[list[float]]:
    """Distances from the mean to the interval's ends; 0 where there is no interval."""
    mean, low, high = (f"{name}_{k}" if name else k for k in ("mean", "low", "high"))
    return [
        [max(0.0, _distance(row[mean], row[low])) for row in rows],
        [max(0.0, _distance(row[high], row[mean])) for row in rows],
    ]


def _distance(upper: Entry, lower: Entry) -> float:
    return 0.0 if upper is None or lower is None else number(upper) - number(lower)


def defense_curves(
    axis: "Axes", rows: Sequence[Row], ylabel: str, xlabel: str, percent: bool
) -> None:
    """One curve for each defense; a defense without a level is a horizontal line."""
    if not rows:
        no_cells(axis)
    levels = sorted({number(row["level"]) for row in rows if row["level"] is not None})
    names = list(dict.fromkeys(str(row["defense"]) for row in rows))
    for place, name in enumerate(names):
        mine = [row for row in rows if row["defense"] == name]
        colour, label = COLOURS.get(name, OTHERS[0]), label_of(name)
        if mine[0]["level"] is None:
            axis.axhline(number(mine[0]["mean"]), color=colour, ls=":", lw=1.1, label=label)
            if mine[0]["low"] is not None:
                low, high = number(mine[0]["low"]), number(mine[0]["high"])
                axis.axhspan(low, high, color=colour, alpha=0.08, lw=0)
        else:
            style = {"color": colour, "marker": MARKERS.get(name, "o"), "ls": LINES.get(name, "-")}
            level_curve(axis, mine, label, aside=apart(place, len(names)), **style)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    if levels:
        mark_levels(axis, levels, percent)


def round_curve(axis: "Axes", rows: Sequence[Row], label: str, **style: Any) -> None:
    """A mean over rounds with its interval as a band."""
    rows = sorted(rows, key=lambda row: number(row["round"]))
    x = [number(row["round"]) for row in rows]
    low = [number(row["mean"] if row["low"] is None else row["low"]) for row in rows]
    high = [number(row["mean"] if row["high"] is None else row["high"]) for row in rows]
    axis.fill_between(x, low, high, alpha=0.18, lw=0, color=style.get("color"))
    axis.plot(x, [number(row["mean"]) for row in rows], label=label, **style)
