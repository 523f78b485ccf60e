"""The trade-off and the attacks' costs, as plain data that plotly draws."""

import math
from dataclasses import dataclass

from gradveil.scoring import Interval

from .._result import AuditResult, DefenseResult
from ._numbers import Figure, estimate, layout, log_axis, number, plain
from ._style import BOUND, Look, Mark, attack_names, attack_on, looks, marks

FLOOR = 1e-9
"""Errors below it are drawn at it: a logarithmic axis has no zero."""
BEYOND = 3.0
"""How far the axis goes beyond the defended marks: a factor of an error, or dB of a PSNR. What is
sent without a defense may leak a million times more, and would take nearly all of the height."""


@dataclass(frozen=True)
class Axis:
    """One choice for an axis. Values that are better for the client lie right and up."""

    key: str
    label: str
    title: str
    reverse: bool = False
    log: bool = False


@dataclass(frozen=True)
class View:
    """The trade-off chart for one choice of both axes."""

    x: Axis
    y: Axis
    figure: Figure

    @property
    def key(self) -> str:
        """How the page finds it."""
        return f"{self.x.key}/{self.y.key}"


LOSS = Axis("loss", "loss after training", "loss after {steps} defended steps", reverse=True)
FIRST = Axis("first", "signal kept in a step (U1)", "signal kept in a step (U1)")
SECOND = Axis("second", "noise in a step (U2)", "noise in a step (U2), 0 is none")
MSE = Axis("mse", "squared error", "squared error per entry", log=True)
PSNR = Axis("psnr", "PSNR", "PSNR in dB", reverse=True)


def utility_axes(result: AuditResult) -> list[Axis]:
    """The utilities that tell the defenses apart, the measured loss first."""
    return [a for a in (LOSS, FIRST, SECOND) if _distinct(result, a) > 1] or [FIRST]


def error_axes(result: AuditResult) -> list[Axis]:
    """Mean squared error and, for images, PSNR."""
    return [MSE, PSNR] if result.setup.is_image else [MSE]


def tradeoff_views(result: AuditResult) -> list[View]:
    """Utility against reconstruction error, for each choice of axes; the first is shown first."""
    return [
        View(x, y, tradeoff(result, x, y)) for x in utility_axes(result) for y in error_axes(result)
    ]


def tradeoff(result: AuditResult, x: Axis, y: Axis) -> Figure:
    """One trace for each defense and mark, each with one point."""
    styles = looks(result)
    pairs = [(d, m) for d in result.defenses for m in marks(result)]
    ends = _ends(result, y)
    traces = [_point(d, m, styles[d.name], x, y, ends) for d, m in pairs]
    steps = next((d.training.steps for d in result.defenses if d.training), 0)
    frame = layout(f"{x.title.format(steps=steps)} (better →)", f"{y.title} (better hidden →)")
    frame["xaxis"]["autorange"] = "reversed" if x.reverse else True
    frame["yaxis"]["autorange"] = "reversed" if y.reverse else True
    drawn = [trace for trace in traces if trace]
    if y.log and drawn:
        frame["yaxis"] |= log_axis([trace["y"][0] for trace in drawn])
    return {"data": drawn, "layout": frame}


def _ends(result: AuditResult, axis: Axis) -> tuple[float, float]:
    """The least and the largest value that are drawn where they are."""
    floor = FLOOR if axis.log else -math.inf
    defended = [d for d in result.defenses if not d.is_undefended]
    errors = [_error(d, mark, axis) for d in defended for mark in marks(result)]
    known = [error.mean for error in errors if error and error.mean > floor]
    if not known:
        return floor, math.inf
    if axis.log:
        return max(floor, min(known) / BEYOND), math.inf
    return floor, max(known) + BEYOND


def _point(
    defense: DefenseResult,
    mark: Mark,
    look: Look,
    x: Axis,
    y: Axis,
    ends: tuple[float, float],
) -> Figure | None:
    across, up = _utility(defense, x), _error(defense, mark, y)
    if across is None or up is None:
        return None
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{plain(defense.name)}, {plain(mark.label)}",
        **_coordinate("x", across, (-math.inf, math.inf), look.color),
        **_coordinate("y", up, ends, look.color),
        "text": [_hover(defense, mark)],
        "hoverinfo": "text",
        "marker": {
            "symbol": mark.symbol if look.filled else f"{mark.symbol}-open",
            "size": 13,
            "color": look.color,
            "line": {"width": 1 if look.filled else 2.5, "color": look.color},
        },
        "meta": {"defense": defense.name, "mark": mark.key},
    }


def _coordinate(name: str, value: Interval, ends: tuple[float, float], color: str) -> Figure:
    low, middle, high = (min(max(v, ends[0]), ends[1]) for v in (value.low, value.mean, value.high))
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, high - middle)],
        "arrayminus": [max(0.0, middle - low)],
        "thickness": 1.5,
        "width": 3,
        "color": color if name == "y" else f"{color}59",
        "visible": value.low != value.high,
    }
    return {name: [middle], f"error_{name}": bars}


def _distinct(result: AuditResult, axis: Axis) -> int:
    values = (_utility(d, axis) for d in result.defenses)
    return len({number(value.mean) for value in values if value})


def _utility(defense: DefenseResult, axis: Axis) -> Interval | None:
    if axis.key == LOSS.key:
        return _finite(defense.training.loss_after if defense.training else None)
    value = defense.utility_first if axis.key == FIRST.key else defense.utility_second
    return None if value is None else _finite(Interval(value, value, value))


def _error(defense: DefenseResult, mark: Mark, axis: Axis) -> Interval | None:
    if mark.key != BOUND:
        attack = attack_on(defense, mark.key)
        return _finite(getattr(attack, axis.key) if attack else None)
    bound = defense.bound
    value = None if bound is None else bound.mse if axis.key == MSE.key else bound.psnr_ceiling
    if bound is None or value is None:
        return None
    error = bound.mse_standard_error if axis.key == MSE.key else 0.0
    return _finite(Interval(value, value - error, value + error))


def _finite(value: Interval | None) -> Interval | None:
    return value if value and all(map(math.isfinite, (value.mean, value.low, value.high))) else None


def _hover(defense: DefenseResult, mark: Mark) -> str:
    lines = [f"<b>{plain(defense.name)}</b>", *_error_lines(defense, mark)]
    lines.append(
        f"signal kept {number(defense.utility_first)}, noise {number(defense.utility_second)}"
    )
    if defense.training:
        lines.append(f"loss after training {estimate(defense.training.loss_after)}")
    return "<br>".join(lines)


def _error_lines(defense: DefenseResult, mark: Mark) -> list[str]:
    attack, bound = attack_on(defense, mark.key), defense.bound
    if attack:
        lines = [f"attack: {plain(mark.label)}", f"squared error {estimate(attack.mse)}"]
        return lines + ([f"PSNR {estimate(attack.psnr)} dB"] if attack.psnr else [])
    assert bound is not None
    error = f" ± {number(bound.mse_standard_error)}" if bound.mse_standard_error else ""
    fails = "" if bound.holds else ", no guarantee here"
    lines = [f"reference error (theory){fails}", f"squared error {number(bound.mse)}{error}"]
    ceiling = bound.psnr_ceiling
    lines += [] if ceiling is None else [f"PSNR at most {number(ceiling)} dB"]
    return [*lines, f"for data that are {plain(bound.prior)}"]


def cost_curves(result: AuditResult, attack: str) -> Figure | None:
    """An attack's own cost over its steps on the first batch and seed, one line per defense."""
    styles = looks(result)
    curves = {d.name: _history(d, attack) for d in result.defenses}
    traces = [_line(name, styles[name], curve) for name, curve in curves.items() if curve]
    if not traces:
        return None
    frame = layout("step", "the attack's own cost")
    costs = [cost for curve in curves.values() for _, cost in curve]
    if min(costs) > 0:
        frame["yaxis"] |= log_axis(costs)
    return {"data": traces, "layout": frame}


def all_cost_curves(result: AuditResult) -> dict[str, Figure]:
    """The curves by the attack's short name, where an attack kept any."""
    figures = {name: cost_curves(result, spec) for spec, name in attack_names(result).items()}
    return {name: figure for name, figure in figures.items() if figure}


def _history(defense: DefenseResult, spec: str) -> tuple[tuple[int, float], ...]:
    attack = attack_on(defense, spec)
    history = next((run.history for run in attack.runs if run.history), ()) if attack else ()
    return tuple((step, cost) for step, cost in history if math.isfinite(cost))


def _line(name: str, look: Look, curve: tuple[tuple[int, float], ...]) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plain(name),
        "x": [step for step, _ in curve],
        "y": [cost for _, cost in curve],
        "text": [f"<b>{plain(name)}</b><br>step {s}, cost {number(c)}" for s, c in curve],
        "hoverinfo": "text",
        "line": {"color": look.color, "width": 2, "dash": "solid" if look.filled else "dot"},
        "meta": {"defense": name},
    }
