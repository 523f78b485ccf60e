"""What leaks over the rounds of a training, as plain data that plotly draws."""

from gradveil.auditing._frontier import Frontier, Leak, Point
from gradveil.auditing._result import AuditResult

from .._layout import Figure, layout, plain
from .._numbers import percent
from .._style import GREY, Look, looks, setting
from ._axes import background, bars, height_of, up
from ._facts import answered
from ._metrics import attack_metric, error_height


def rounds_figure(result: AuditResult, frontier: Frontier) -> Figure | None:
    """The strongest attack's error at each moment, without a defense and for each answer."""
    if len(frontier.moments) < 2:
        return None
    metric = attack_metric(result.setup.is_image)
    traces = [_line(name, look, point) for name, look, point in _shown(result, frontier)]
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


def _line(name: str, look: Look, point: Point) -> Figure:
    known = [leak for leak in point.leaks if leak.error]
    heights = [height_of(leak.error, error_height) for leak in known if leak.error]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(name),
        "x": [leak.round for leak in known],
        "y": [height.mean for height in heights],
        "error_y": bars(heights, look.color),
        "text": [_hover(name, leak) for leak in known],
        "hoverinfo": "text",
        "line": {"color": look.color, "width": 2.5, "dash": "solid" if look.filled else "dot"},
        "marker": {"size": 9, "color": look.color},
        "meta": {"defense": name},
    }


def _hover(name: str, leak: Leak) -> str:
    error = percent(leak.error.mean) if leak.error else ""
    text = f"<b>{plain(name)}</b><br>round {leak.round}: {error} of a blind guess's error"
    return f"{text}<br>near copies: {leak.copies} of {leak.examples}" if leak.copies else text
