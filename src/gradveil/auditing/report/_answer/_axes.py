"""The axes of the frontier and what lies behind its lines."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradveil.auditing._frontier import Frontier, Point
from gradveil.scoring import Interval

from .._layout import Figure
from .._numbers import plural
from .._style import GREY
from ._metrics import Metric

MARGIN = 1.12
"""The loss axis ends at this multiple of the loss before training: beyond it, training harms."""
WIDEST = 0.25
"""Of the largest loss: how far bars are shown beyond the points, at least."""
ROOM = 0.07
"""Above and below what a vertical axis shows."""
BANDS = (
    "rgba(213,94,0,0.16)",
    "rgba(213,94,0,0.09)",
    "rgba(213,94,0,0.035)",
    "rgba(0,158,115,0.10)",
)


@dataclass(frozen=True)
class Across:
    """The horizontal axis: the loss, or the place of a strength where nothing was trained."""

    title: str
    edge: float
    """Losses beyond it, and of trainings that diverged, are drawn at it."""
    trained: bool

    def place(self, point: Point, order: int) -> Interval | None:
        """Where a point is drawn; `None` if it has no loss although others have."""
        if not self.trained:
            return Interval(order, order, order)
        loss = point.loss
        if loss is None:
            return None
        if not math.isfinite(loss.mean) or loss.mean >= self.edge:
            return Interval(self.edge, self.edge, self.edge)
        return Interval(loss.mean, loss.low, min(loss.high, self.edge))


def across(frontier: Frontier) -> Across:
    """The axis of the losses that were measured."""
    points = [frontier.undefended, *(point for _, point in frontier.points())]
    known = [p.loss.mean for p in points if p.loss and math.isfinite(p.loss.mean)]
    if not known:
        return Across("strength, from weak to strong", 0.0, False)
    plain_loss = frontier.undefended.loss
    start = [frontier.loss_before, plain_loss.mean if plain_loss else None]
    usual = [MARGIN * value for value in start if value is not None and math.isfinite(value)]
    edge = min(max(known), max(usual)) if usual else max(known)
    low = min(known)
    return Across(
        f"loss after {plural(frontier.rounds, 'round')} of training",
        max(edge, low) + 0.03 * abs(edge - low),
        True,
    )


def beyond_edge(frontier: Frontier, point: Point) -> bool:
    """Whether the point's loss is not on the axis."""
    axis = across(frontier)
    return axis.trained and point.loss is not None and not point.loss.mean < axis.edge


def height_of(value: Interval, height: Callable[[float], float]) -> Interval:
    """A value with its interval where it is drawn."""
    low, high = sorted(height(end) for end in (value.low, value.high))
    return Interval(height(value.mean), low, high)


def bars(values: Sequence[Interval], color: str) -> Figure:
    """Error bars."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, value.high - value.mean) for value in values],
        "arrayminus": [max(0.0, value.mean - value.low) for value in values],
        "thickness": 1.2,
        "width": 3,
        "color": color,
    }


def up(metric: Metric) -> Figure:
    """The vertical axis, its ticks at the values that they name."""
    low, high = (metric.height(end) for end in metric.ends)
    room = ROOM * (high - low)
    return {
        "tickmode": "array",
        "tickvals": [metric.height(tick) for tick in metric.ticks],
        "ticktext": [metric.show(tick) for tick in metric.ticks],
        "range": [low - room, high + room],
    }


def right(axis: Across, traces: Sequence[Figure]) -> Figure:
    """The horizontal axis, just as wide as needed."""
    places = [x for trace in traces for x in trace["x"]]
    low, high = min(places, default=0.0), max(places, default=1.0)
    if axis.trained:  # bars of a few seeds may be far longer than the curves
        most = max(high - low, WIDEST * abs(high))
        ends = [end for trace in traces for end in _reach(trace)]
        low, high = max(min(ends), low - most), min(max(ends), high + most)
    room = 0.05 * (high - low) or 0.5
    found: Figure = {"range": [low - room, high + room]}
    if not axis.trained:
        found |= {"dtick": 1}
    return found


def _reach(trace: Figure) -> list[float]:
    """Where the bars of its points end."""
    bars_of = trace["error_x"]
    ends = zip(trace["x"], bars_of["arrayminus"], bars_of["array"], strict=True)
    return [end for x, down, above in ends for end in (x - down, x + above)]


def background(metric: Metric, span: Sequence[float]) -> tuple[list[Figure], list[Figure]]:
    """Bands with words, and a line to compare with: shapes and annotations."""
    shapes, words = [], []
    last = len(metric.bands) - 1
    for place, (start, end, text) in enumerate(metric.bands):
        top, bottom = metric.height(start), metric.height(end)
        shapes.append(_band(top, bottom, BANDS[place]))
        words.append(_word(text, (top + bottom) / 2, span[1]))
        if place == last:  # strong points lie to the right there
            shapes[-1]["y0"] -= ROOM
            corner = {"x": span[0], "xanchor": "left", "yanchor": "bottom", "yref": "paper"}
            words[-1] |= corner | {"y": 0.0}
    if metric.line:
        height = metric.height(metric.line[0])
        shapes.append(_band(height, height, GREY) | {"type": "line", "line": _dash()})
        words.append(_word(metric.line[1], height, span[1]) | {"yanchor": "bottom"})
    return shapes, words


def _band(top: float, bottom: float, color: str) -> Figure:
    place = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": bottom, "y1": top}
    return {"type": "rect", "layer": "below", "line": {"width": 0}, "fillcolor": color, **place}


def _dash() -> Figure:
    return {"width": 1.5, "dash": "dash", "color": GREY}


def _word(text: str, height: float, right: float) -> Figure:
    place = {"x": right, "y": height, "xanchor": "right", "yanchor": "middle"}
    return {"text": text, "showarrow": False, "font": {"size": 12}, **place}
