"""The chart of leakage against loss, as plain data that plotly draws."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from gradveil.scoring import Interval

from .._result import AuditResult, Curve, Frontier, Point
from ._facts import (
    COPY,
    GREY,
    NOTHING,
    RECOGNISABLE,
    Look,
    answered,
    every_point,
    looks,
    main_answer,
    most_told,
    strongest_leak,
)
from ._numbers import estimate, named, number, plural, share

Figure = dict[str, Any]

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


def metrics(result: AuditResult) -> list[Metric]:
    """Those that were measured, the strongest attack first."""
    points = every_point(result.frontier)
    candidates = (attack_metric(result.setup.is_image), _told(points))
    return [m for m in candidates if m is not None and any(m.value(point) for point in points)]


def error_height(error: float) -> float:
    """0 at a copy, -1 at a guess; roots below (a copy and a blur differ), logarithms above.

    >>> [round(error_height(error), 2) for error in (0.0, 0.01, 0.25, 1.0, 10.0)]
    [-0.0, -0.1, -0.5, -1.0, -1.15]
    """
    if error <= 1:
        return -math.sqrt(max(error, 0.0))
    return -1 - 0.15 * min(math.log10(error), 1.0)


def attack_metric(is_image: bool) -> Metric:
    """The strongest attack's error, from copies down to no further than a guess."""
    edges = (0.0, COPY, RECOGNISABLE, NOTHING, 10.0)
    middle = ("recognisable", "blurred") if is_image else ("much recovered", "some recovered")
    words = ("near copies", *middle, "no further than a guess")
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


def _told(points: Sequence[Point]) -> Metric | None:
    count = max((told.candidates for point in points if (told := most_told(point))), default=0)
    if not count:
        return None
    return Metric(
        "share",
        f"who is picked out of {count}",
        f"right one of {count} candidates picked, in % of trials",
        lambda point: found.rate if (found := most_told(point)) else None,
        float,
        share,
        (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        (0.0, 1.0),
        line=(1 / count, "chance"),
    )


def _exactly(value: float) -> Interval:
    return Interval(value, value, value)


@dataclass(frozen=True)
class Across:
    """The horizontal axis: the loss; where nothing was trained, the place of a strength."""

    title: str
    edge: float
    """Losses beyond it, and of trainings that diverged, are drawn at it."""
    trained: bool
    places: dict[str, int]
    """Of the settings, in each curve; of the curves where each has one."""

    def place(self, point: Point) -> Interval | None:
        """Where a point is drawn; `None` if it has no loss although others have."""
        if not self.trained:
            return _exactly(self.places[point.defense])
        if point.loss is None or self.beyond(point):
            return None if point.loss is None else _exactly(self.edge)
        return Interval(point.loss.mean, point.loss.low, min(point.loss.high, self.edge))

    def beyond(self, point: Point) -> bool:
        """Whether the point's loss is not on the axis."""
        return self.trained and point.loss is not None and not point.loss.mean < self.edge


def across(result: AuditResult) -> Across:
    """The axis of the losses that were measured."""
    frontier = result.frontier
    swept = any(len(curve.points) > 1 for curve in frontier.curves)
    places = {frontier.undefended.defense: 0}
    for row, curve in enumerate(frontier.curves, start=1):
        for order, point in enumerate(curve.points, start=1):
            places[point.defense] = order if swept else row
    losses = [point.loss.mean for point in every_point(frontier) if point.loss]
    known = [loss for loss in losses if math.isfinite(loss)]
    if not known:
        title = "strength, from weak to strong" if swept else "the defenses in their order"
        return Across(title, 0.0, False, places)
    plain = frontier.undefended.loss
    start = [frontier.loss_before, plain.mean if plain else None]
    usual = [MARGIN * value for value in start if value is not None and math.isfinite(value)]
    edge, low = min(max(known), max(usual, default=math.inf)), min(known)
    title = f"loss after {plural(result.setup.federation.rounds, 'round')} of training"
    return Across(title, max(edge, low) + 0.03 * abs(edge - low), True, places)


def frontier_figures(result: AuditResult) -> dict[str, Figure]:
    """The picture for each kind of leakage, by its key; the first is shown first."""
    return {metric.key: _frontier_figure(result, metric) for metric in metrics(result)}


def _frontier_figure(result: AuditResult, metric: Metric) -> Figure:
    frontier, styles = result.frontier, looks(result)
    axis = across(result)
    traces = [_curve(curve, metric, axis, styles[curve.name]) for curve in frontier.curves]
    undefended = _undefended(frontier.undefended, metric, axis)
    drawn = [trace for trace in (*traces, undefended) if trace["x"]]
    places = [x for trace in drawn for x in trace["x"]] or [0.0, 1.0]
    low, high = min(places), max(places)
    room = 0.08 * (high - low) or 0.5
    side = "right" if not undefended["x"] or undefended["x"][0] <= (low + high) / 2 else "left"
    undefended["textposition"] = f"middle {side}"
    layout = _layout(axis, metric, [low - room, high + room])
    return {"data": [*drawn, *_rings(frontier, metric, axis)], "layout": layout}


def _curve(curve: Curve, metric: Metric, axis: Across, look: Look) -> Figure:
    points = [p for p in curve.points if axis.place(p) and metric.value(p)]
    marks = ["triangle-right" if axis.beyond(point) else "circle" for point in points]
    return {
        **_trace(curve.name, points, metric, axis, look.color),
        "mode": "lines+markers",
        "line": {"color": look.color, "width": 2.5, "dash": "solid" if look.filled else "dot"},
        "opacity": 0.45 if curve.dominated_by else 1.0,
        "marker": {
            "symbol": [mark if look.filled else f"{mark}-open" for mark in marks],
            "size": 10,
            "color": look.color,
            "line": {"width": 1 if look.filled else 2, "color": look.color},
        },
    }


def _undefended(point: Point, metric: Metric, axis: Across) -> Figure:
    shown = [point] if axis.place(point) and metric.value(point) else []
    return {
        **_trace("no defense", shown, metric, axis, GREY),
        "mode": "markers+text",
        "text": ["no defense"],
        "marker": {"symbol": "x", "size": 12, "color": GREY},
    }


def _trace(name: str, points: Sequence[Point], metric: Metric, axis: Across, color: str) -> Figure:
    """Marks with their intervals and hover texts; plotly reads a little HTML in names."""
    xs = [x for point in points if (x := axis.place(point))]
    ys = [_drawn(y, metric.height) for point in points if (y := metric.value(point))]
    return {
        "type": "scatter",
        "name": escape(name, quote=False),
        "x": [x.mean for x in xs],
        "y": [y.mean for y in ys],
        "error_x": _bars(xs, f"{color}80"),
        "error_y": _bars(ys, color),
        "hovertext": [_hover(name, point) for point in points],
        "hoverinfo": "text",
        "meta": {"defense": name},
    }


def _rings(frontier: Frontier, metric: Metric, axis: Across) -> Iterator[Figure]:
    """Around the points of the answers; the recommended one is named."""
    main = main_answer(frontier)
    for answer in frontier.answers:
        found = answered(frontier, answer)
        x, y = (axis.place(found[1]), metric.value(found[1])) if found else (None, None)
        if found is None or x is None or y is None:
            continue
        words = "recommended" if answer.reached else "nearest"
        yield {
            "type": "scatter",
            "mode": "markers+text",
            "name": escape(answer.title, quote=False),
            "x": [x.mean],
            "y": [metric.height(y.mean)],
            "text": [f"<b>{words}</b>" if answer is main else ""],
            "textposition": _below(x, axis, frontier),
            "textfont": {"size": 14},
            "hoverinfo": "skip",
            "marker": {
                "symbol": "circle-open",
                "size": 26 if answer is main else 20,
                "line": {"width": 4 if answer is main else 1.5, "color": STRONG},
                "color": STRONG,
            },
            "meta": {"defense": found[0].name},
        }


def _below(x: Interval, axis: Across, frontier: Frontier) -> str:
    """Nothing better lies below a recommended point: there is room for words."""
    start = axis.place(frontier.undefended)
    low = start.mean if start else 0.0
    part = (x.mean - low) / (axis.edge - low) if axis.trained and axis.edge > low else 0.5
    return "bottom right" if part < 0.2 else "bottom left" if part > 0.85 else "bottom center"


def _drawn(value: Interval, height: Callable[[float], float]) -> Interval:
    """A value with its interval where it is drawn."""
    low, high = sorted(height(end) for end in (value.low, value.high))
    return Interval(height(value.mean), low, high)


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


def _hover(name: str, point: Point) -> str:
    leak, told = strongest_leak(point), most_told(point)
    lines = [f"<b>{escape(named(name, point.defense), quote=False)}</b>"]
    if leak and leak.error:
        lines.append(f"strongest attack: {share(leak.error.mean)} of a blind guess's error")
        lines += [f"PSNR {estimate(leak.psnr)} dB"] if leak.psnr else []
        lines += [f"near copies: {leak.copies} of {leak.examples}"] if leak.copies else []
    if told:
        lines.append(f"picked out of {told.candidates}: {share(told.rate.mean)}")
    if point.bound:
        holds = "" if point.bound_holds else ", no guarantee here"
        lines.append(f"reference error {number(point.bound)}{holds}")
    if point.loss:
        lines.append(f"loss {estimate(point.loss)}")
    if point.epsilon is not None:
        lines.append(f"ε = {number(point.epsilon)}")
    return "<br>".join(lines)


def _layout(axis: Across, metric: Metric, span: list[float]) -> Figure:
    """The axes of a metric, with its bands and its line to compare with; the page adds the rest."""
    low, high = (metric.height(end) for end in metric.ends)
    room = ROOM * (high - low)
    shapes, words = [], []
    for color, (start, end, text) in zip(BANDS, metric.bands, strict=False):
        top, bottom = metric.height(start), metric.height(end)
        shapes.append(_band(top, bottom, color))
        words.append(_word(text, (top + bottom) / 2))
    if metric.bands:  # strong points lie to the right there
        shapes[-1]["y0"] -= ROOM
        words[-1] |= {"x": 0, "xanchor": "left", "y": 0, "yanchor": "bottom", "yref": "paper"}
    if metric.line:
        height = metric.height(metric.line[0])
        dash = {"width": 1.5, "dash": "dash", "color": GREY}
        shapes.append(_band(height, height, GREY) | {"type": "line", "line": dash})
        words.append(_word(metric.line[1], height) | {"yanchor": "bottom"})
    return {
        "xaxis": {
            "title": {"text": axis.title},
            "range": span,
            **({} if axis.trained else {"dtick": 1}),
        },
        "yaxis": {
            "title": {"text": metric.title},
            "tickmode": "array",
            "tickvals": [metric.height(tick) for tick in metric.ticks],
            "ticktext": [metric.show(tick) for tick in metric.ticks],
            "range": [low - room, high + room],
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
