"""The frontier as plain data that plotly draws: leakage against the loss after training."""

from collections.abc import Iterator, Sequence

from gradveil.auditing._frontier import Answer, Curve, Frontier, Point
from gradveil.auditing._result import AuditResult
from gradveil.scoring import Interval

from .._layout import Figure, layout, plain
from .._numbers import estimate, number, percent
from .._style import GREY, Look, looks, setting
from ._axes import Across, across, background, bars, height_of, right, up
from ._facts import answered, main_answer, most_told, strongest_leak
from ._metrics import Metric, metrics

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
