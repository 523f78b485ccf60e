"""The chart of leakage against loss, as plain data that plotly draws.

Each defense has a hue whose contrast is at least 3 on white and on the dark background, so that
charts need no second palette; the first ones are those of Okabe and Ito.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle
from typing import Any

from gradveil.scoring import Interval

from .._result import AuditResult, Curve, Frontier, Point
from .._settings import COPY, NOTHING, RECOGNISABLE
from ._tables import point_row
from ._words import named, plural, share

Figure = dict[str, Any]

GREY = "#808080"
HUES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A7300", "#7B68C8", "#1A8F9C", "#B5544A")
STRONG = "#E0383E"
BANDS = (
    "rgba(213,94,0,0.16)",
    "rgba(213,94,0,0.09)",
    "rgba(213,94,0,0.035)",
    "rgba(0,158,115,0.10)",
)
MARGIN = 1.12
"""The loss axis ends at this multiple of the loss before training: beyond it, training harms."""
ROOM = 0.07
"""Above and below what a vertical axis shows."""


def hues(result: AuditResult) -> dict[str, str]:
    """The colour of each defense by name: that of its curve; the undefended message is grey."""
    curves = result.frontier.curves
    found = {curve.name: hue for curve, hue in zip(curves, cycle(HUES), strict=False)}
    of_points = {point.defense: found[curve.name] for curve in curves for point in curve.points}
    return {d.name: of_points.get(d.defense, GREY) for d in result.defenses} | found


@dataclass(frozen=True)
class Metric:
    """One kind of leakage."""

    key: str
    label: str
    title: str
    value: Callable[[Point], Interval | None]
    height: Callable[[float], float]
    """Where a value is drawn; more leakage lies higher."""
    ticks: tuple[float, ...]
    """Values, the lowest and the highest that the axis shows at its ends."""
    bands: tuple[str, ...] = ()
    """Words for what lies between two ticks of a number above 0, the highest band first."""
    chance: float | None = None


def metrics(result: AuditResult) -> list[Metric]:
    """Those that were measured, the strongest attack first."""
    points = [point for _, point in result.frontier.points()]
    count = max((told.candidates for point in points if (told := point.told_apart)), default=0)
    image = result.setup.is_image
    middle = ("recognisable", "blurred") if image else ("much recovered", "some recovered")
    attack = Metric(
        "attack",
        "what the strongest attack rebuilt",
        "error left, in % of a blind guess's",
        lambda point: point.strongest.error if point.strongest else None,
        error_height,
        (10.0, NOTHING, RECOGNISABLE, COPY, 0.01, 0.0),
        ("near copies", *middle, "no further than a guess"),
    )
    picked = Metric(
        "share",
        f"who is picked out of {count}",
        f"right one of {count} candidates picked, in % of trials",
        lambda point: point.told_apart.rate if point.told_apart else None,
        float,
        (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        chance=1 / count if count else None,
    )
    return [one for one in (attack, picked) if any(one.value(point) for point in points)]


def error_height(error: float) -> float:
    """0 at a copy, -1 at a guess; roots below (a copy and a blur differ), logarithms above.

    >>> [round(error_height(error), 2) for error in (0.0, 0.01, 0.25, 1.0, 10.0)]
    [-0.0, -0.1, -0.5, -1.0, -1.15]
    """
    if error <= 1:
        return -math.sqrt(max(error, 0.0))
    return -1 - 0.15 * min(math.log10(error), 1.0)


def edge_of(result: AuditResult) -> float:
    """Where the axis of losses ends; losses beyond, and of what diverged, are drawn there."""
    frontier = result.frontier
    losses = [point.loss.mean for _, point in frontier.points() if point.loss]
    known = [loss for loss in losses if math.isfinite(loss)] or [0.0]
    plain = frontier.undefended.loss
    start = [frontier.loss_before, plain.mean if plain else None]
    usual = [MARGIN * value for value in start if value is not None and math.isfinite(value)]
    edge, low = min(max(known), max(usual, default=math.inf)), min(known)
    return max(edge, low) + 0.03 * abs(edge - low)


def has_beyond(result: AuditResult) -> bool:
    """Whether a point is drawn at the edge."""
    edge = edge_of(result)
    return any(p.loss is not None and not p.loss.mean < edge for _, p in result.frontier.points())


def _drawn(value: Interval, place: Callable[[float], float]) -> Interval:
    """A value with its interval where it is drawn."""
    low, high = sorted((place(value.low), place(value.high)))
    return Interval(place(value.mean), low, high)


def frontier_figures(result: AuditResult) -> dict[str, Figure]:
    """The picture for each kind of leakage, by its key, the first first; none without training."""
    if all(point.loss is None for _, point in result.frontier.points()):
        return {}
    return {metric.key: _figure(result, metric, edge_of(result)) for metric in metrics(result)}


def _figure(result: AuditResult, metric: Metric, edge: float) -> Figure:
    frontier = result.frontier
    curves = [_curve(result, metric, edge, curve) for curve in (*frontier.curves, frontier.plain)]
    drawn = [trace for trace in curves if trace["x"]]
    places = [x for trace in drawn for x in trace["x"]] or [0.0, 1.0]
    room = 0.08 * (max(places) - min(places)) or 0.5
    rounds = plural(result.setup.federation.rounds, "round")
    span = [min(places) - room, max(places) + room]
    layout = _layout(metric, f"loss after {rounds} of training", span)
    return {"data": [*drawn, *_rings(frontier, metric, edge)], "layout": layout}


def _curve(result: AuditResult, metric: Metric, edge: float, curve: Curve) -> Figure:
    """Marks with their intervals and hover texts; plotly reads a little HTML in names."""
    color = hues(result).get(curve.name, GREY)
    points = [(p, p.loss, y) for p in curve.points if p.loss and (y := metric.value(p))]
    xs = [_drawn(loss, lambda end: min(end, edge)) for _, loss, _ in points]
    ys = [_drawn(y, metric.height) for _, _, y in points]
    marks = ["circle" if loss.mean < edge else "triangle-right" for _, loss, _ in points]
    trace = {
        "type": "scatter",
        "name": escape(curve.name, quote=False),
        "x": [x.mean for x in xs],
        "y": [y.mean for y in ys],
        "error_x": _bars(xs, f"{color}80"),
        "error_y": _bars(ys, color),
        "hovertext": [_hover(result, curve, point) for point, _, _ in points],
        "hoverinfo": "text",
        "meta": {"defense": curve.name},
        "mode": "lines+markers",
        "line": {"color": color, "width": 2.5},
        "marker": {
            "symbol": marks,
            "size": 10,
            "color": color,
            "line": {"width": 1, "color": color},
        },
    }
    if curve != result.frontier.plain:
        return trace
    words = {"mode": "markers+text", "text": ["no defense"], "textposition": "middle right"}
    return trace | words | {"marker": {"symbol": "x", "size": 12, "color": GREY}}


def _hover(result: AuditResult, curve: Curve, point: Point) -> str:
    """What the table of points says of it."""
    title = f"<b>{escape(named(curve.name, point.defense), quote=False)}</b>"
    _, _, *said = point_row(result, curve, point).items()
    cells = [(column.label, cell) for column, cell in said if cell and cell.value is not None]
    return "<br>".join([title, *(f"{label}: {cell.text} {cell.note}" for label, cell in cells)])


def _rings(frontier: Frontier, metric: Metric, edge: float) -> Iterator[Figure]:
    """Around the points of the answers; the recommended one is named."""
    for answer in frontier.answers:
        found, main = frontier.setting(answer), answer is frontier.main
        if found is None or found[1].loss is None or (y := metric.value(found[1])) is None:
            continue
        words = "recommended" if answer.reached else "nearest"
        x, plain = min(found[1].loss.mean, edge), frontier.undefended.loss
        start = plain.mean if plain else x
        yield {
            "type": "scatter",
            "mode": "markers+text",
            "name": escape(answer.title, quote=False),
            "x": [x],
            "y": [metric.height(y.mean)],
            "text": [f"<b>{words}</b>" if main else ""],
            "textposition": f"bottom {'left' if 2 * x > start + edge else 'right'}",
            "textfont": {"size": 14},
            "hoverinfo": "skip",
            "marker": {
                "symbol": "circle-open",
                "size": 26 if main else 20,
                "line": {"width": 4 if main else 1.5, "color": STRONG},
                "color": STRONG,
            },
            "meta": {"defense": found[0].name},
        }


def _bars(values: Sequence[Interval], color: str) -> Figure:
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, value.high - value.mean) for value in values],
        "arrayminus": [max(0.0, value.mean - value.low) for value in values],
        "thickness": 1.2,
        "width": 3,
        "color": color,
    }


def _layout(metric: Metric, title: str, span: list[float]) -> Figure:
    """The axes of a metric, with its bands and its line to compare with; the page adds the rest."""
    heights = [metric.height(tick) for tick in metric.ticks]
    room = ROOM * (heights[-1] - heights[0])
    shapes, words = [], []
    edges = [metric.height(edge) for edge in (0.0, COPY, RECOGNISABLE, NOTHING, 10.0)]
    for color, top, bottom, text in zip(BANDS, edges, edges[1:], metric.bands, strict=False):
        shapes.append(_band(top, bottom, color))
        words.append(_word(text, (top + bottom) / 2))
    if metric.bands:  # strong points lie to the right there
        shapes[-1]["y0"] -= ROOM
        words[-1] |= {"x": 0, "xanchor": "left", "y": 0, "yanchor": "bottom", "yref": "paper"}
    if metric.chance is not None:
        dash = {"width": 1.5, "dash": "dash", "color": GREY}
        line = {"type": "line", "line": dash}
        shapes.append(_band(metric.chance, metric.chance, GREY) | line)
        words.append(_word("chance", metric.chance) | {"yanchor": "bottom"})
    texts = [f"{'≥ ' if tick > 1 else ''}{share(tick)}" for tick in metric.ticks]
    return {
        "xaxis": {"title": {"text": title}, "range": span},
        "yaxis": {
            "title": {"text": metric.title},
            "tickmode": "array",
            "tickvals": heights,
            "ticktext": texts,
            "range": [heights[0] - room, heights[-1] + room],
        },
        "shapes": shapes,
        "annotations": words,
    }


def _band(top: float, bottom: float, color: str) -> Figure:
    place = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": bottom, "y1": top}
    return {"type": "rect", "layer": "below", "line": {"width": 0}, "fillcolor": color, **place}


def _word(text: str, height: float) -> Figure:
    place = {"xref": "paper", "x": 1, "y": height, "xanchor": "right", "yanchor": "middle"}
    return {"text": text, "showarrow": False, "font": {"size": 12}, **place}
