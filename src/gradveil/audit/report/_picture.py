"""The picture of leakage against loss, and of leakage over rounds."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gradveil.scoring import Interval

from .._result import Answer, AuditResult, Curve, Frontier, Leak, Point
from ._facts import answered, main_answer, most_told, share, strongest_leak
from ._numbers import Figure, estimate, layout, number, percent, plain, plural
from ._style import GREY, Look, looks, setting
from ._verdict import COPY, NOTHING, RECOGNISABLE

IMAGES = ("near copies", "recognisable", "blurred", "no further than a guess")
VALUES = ("near copies", "much recovered", "some recovered", "no further than a guess")


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
    """The strongest attack's error, from copies down to no further than a guess."""
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


STRONG = "#E0383E"


def frontier_figures(result: AuditResult, frontier: Frontier) -> dict[str, Figure]:
    """The picture for each kind of leakage, by its key; the first is shown first."""
    kinds = metrics(frontier, result.setup.is_image)
    return {kind.key: _figure(result, frontier, kind) for kind in kinds}


def _figure(result: AuditResult, frontier: Frontier, metric: Metric) -> Figure:
    axis, styles = across(frontier), looks(result)
    traces = [_line(curve, metric, axis, styles[curve.name]) for curve in frontier.curves]
    undefended = _undefended(frontier, metric, axis)
    rings = list(_rings(frontier, metric, axis))
    frame = layout(axis.title, metric.title)
    frame["yaxis"] |= up(metric)
    frame["xaxis"] |= right(axis, [*traces, *undefended])
    for trace in undefended:
        trace["textposition"] = _side(trace["x"][0], frame["xaxis"]["range"])
    frame["shapes"], frame["annotations"] = background(metric, frame["xaxis"]["range"])
    return {"data": [t for t in [*traces, *undefended, *rings] if t["x"]], "layout": frame}


def _line(curve: Curve, metric: Metric, axis: Across, look: Look) -> Figure:
    found = [
        (x, y, point)
        for order, point in enumerate(curve.points, start=1)
        if (x := axis.place(point, order)) and (y := metric.value(point))
    ]
    fade = 0.45 if curve.dominated_by else 1.0
    marks = ["triangle-right" if _beyond(x, axis) else "circle" for x, _, _ in found]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(curve.name),
        **_positions(found, metric, look.color),
        "text": [_hover(curve, point) for _, _, point in found],
        "hoverinfo": "text",
        "opacity": fade,
        "line": {"color": look.color, "width": 2.5, "dash": "solid" if look.filled else "dot"},
        "marker": {
            "symbol": [mark if look.filled else f"{mark}-open" for mark in marks],
            "size": 10,
            "color": look.color,
            "line": {"width": 1 if look.filled else 2, "color": look.color},
        },
        "meta": {"defense": curve.name},
    }


def _undefended(frontier: Frontier, metric: Metric, axis: Across) -> list[Figure]:
    point = frontier.undefended
    x, y = axis.place(point, 0), metric.value(point)
    if x is None or y is None:
        return []
    trace = {
        "type": "scatter",
        "mode": "markers+text",
        "name": "no defense",
        **_positions([(x, y, point)], metric, GREY),
        "text": ["no defense"],
        "hovertext": [_hover(None, point)],
        "hoverinfo": "text",
        "marker": {"symbol": "x", "size": 12, "color": GREY},
        "meta": {"defense": "no defense"},
    }
    return [trace]


def _rings(frontier: Frontier, metric: Metric, axis: Across) -> Iterator[Figure]:
    """Around the points of the answers; the recommended one is named."""
    main = main_answer(frontier)
    for answer in frontier.answers:
        found = answered(frontier, answer)
        if found is None:
            continue
        curve, point = found
        x, y = axis.place(point, 1 + curve.points.index(point)), metric.value(point)
        if x is None or y is None:
            continue
        yield {
            "type": "scatter",
            "mode": "markers+text",
            "name": plain(answer.title),
            "x": [x.mean],
            "y": [metric.height(y.mean)],
            "text": [_name(answer, main)],
            "textposition": _textposition(x, axis, frontier),
            "textfont": {"size": 14},
            "hoverinfo": "skip",
            "marker": {
                "symbol": "circle-open",
                "size": 26 if answer is main else 20,
                "line": {"width": 4 if answer is main else 1.5, "color": STRONG},
                "color": STRONG,
            },
            "meta": {"defense": curve.name},
        }


def _name(answer: Answer, main: Answer | None) -> str:
    if answer is not main:
        return ""
    return "<b>recommended</b>" if answer.reached else "<b>nearest</b>"


def _textposition(x: Interval, axis: Across, frontier: Frontier) -> str:
    """Nothing better lies below a recommended point: there is room for words."""
    start = axis.place(frontier.undefended, 0)
    low = start.mean if start else 0.0
    share = (x.mean - low) / (axis.edge - low) if axis.trained and axis.edge > low else 0.5
    return "bottom right" if share < 0.2 else "bottom left" if share > 0.85 else "bottom center"


def _side(x: float, span: Sequence[float]) -> str:
    return "middle right" if x <= sum(span) / 2 else "middle left"


def _beyond(x: Interval, axis: Across) -> bool:
    return axis.trained and x.mean >= axis.edge


def _positions(
    found: Sequence[tuple[Interval, Interval, Point]], metric: Metric, color: str
) -> Figure:
    xs = [x for x, _, _ in found]
    heights = [height_of(y, metric.height) for _, y, _ in found]
    return {
        "x": [x.mean for x in xs],
        "y": [y.mean for y in heights],
        "error_x": bars(xs, f"{color}80"),
        "error_y": bars(heights, color),
    }


def _hover(curve: Curve | None, point: Point) -> str:
    name = plain(curve.name) if curve else "no defense"
    lines = [f"<b>{name}</b> {setting(point.defense) if curve else ''}".strip()]
    leak, told = strongest_leak(point), most_told(point)
    if leak and leak.error:
        left = f"{percent(leak.error.mean)} of a blind guess's error"
        lines.append(f"strongest attack: {left} (round {leak.round})")
        lines += [f"PSNR {estimate(leak.psnr)} dB"] if leak.psnr else []
        lines += [f"near copies: {leak.copies} of {leak.examples}"] if leak.copies else []
    if told:
        lines.append(f"picked out of {told.candidates}: {percent(told.rate.mean)}")
    if point.bound:
        holds = "" if point.bound_holds else ", no guarantee here"
        lines.append(f"reference error {number(point.bound)}{holds}")
    if point.loss:
        lines.append(f"loss {estimate(point.loss)}")
    if point.accuracy:
        lines.append(f"right classes {percent(point.accuracy.mean)}")
    if point.epsilon is not None:
        lines.append(f"ε = {number(point.epsilon)}")
    return "<br>".join(lines)


def rounds_figure(result: AuditResult, frontier: Frontier) -> Figure | None:
    """The strongest attack's error at each moment, without a defense and for each answer."""
    if len(frontier.moments) < 2:
        return None
    metric = attack_metric(result.setup.is_image)
    traces = [_rounds_line(name, look, point) for name, look, point in _shown(result, frontier)]
    traces = [trace for trace in traces if trace["x"]]
    if not traces:
        return None
    frame = layout("round of the training", metric.title)
    frame["yaxis"] |= up(metric)
    last = max(frontier.moments)
    frame["xaxis"] |= {"tickvals": list(frontier.moments), "range": [-0.05 * last, 1.25 * last]}
    frame["shapes"], frame["annotations"] = background(metric, frame["xaxis"]["range"])
    return {"data": traces, "layout": frame}


def rounds_legend(result: AuditResult, frontier: Frontier) -> list[tuple[str, Look]]:
    """The lines with their looks."""
    return [(name, look) for name, look, _ in _shown(result, frontier)]


def _shown(result: AuditResult, frontier: Frontier) -> list[tuple[str, Look, Point]]:
    styles = looks(result)
    found = [("no defense", Look(GREY, True), frontier.undefended)]
    for answer in frontier.answers:
        pair = answered(frontier, answer)
        if pair is None:
            continue
        curve, point = pair
        name = f"{curve.name}, {setting(point.defense)}"
        if name not in [known for known, _, _ in found]:
            found.append((name, styles[curve.name], point))
    return found


def _rounds_line(name: str, look: Look, point: Point) -> Figure:
    known = [leak for leak in point.leaks if leak.error]
    heights = [height_of(leak.error, error_height) for leak in known if leak.error]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(name),
        "x": [leak.round for leak in known],
        "y": [height.mean for height in heights],
        "error_y": bars(heights, look.color),
        "text": [_rounds_hover(name, leak) for leak in known],
        "hoverinfo": "text",
        "line": {"color": look.color, "width": 2.5, "dash": "solid" if look.filled else "dot"},
        "marker": {"size": 9, "color": look.color},
        "meta": {"defense": name},
    }


def _rounds_hover(name: str, leak: Leak) -> str:
    error = percent(leak.error.mean) if leak.error else ""
    text = f"<b>{plain(name)}</b><br>round {leak.round}: {error} of a blind guess's error"
    return f"{text}<br>near copies: {leak.copies} of {leak.examples}" if leak.copies else text
