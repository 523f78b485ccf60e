"""The attacks' costs over their steps, as plain data that plotly draws."""

import math

from gradveil.auditing._result import AuditResult, DefenseResult

from ._layout import Figure, layout, log_axis, plain
from ._numbers import number
from ._style import Look, attack_names, attack_on, looks


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
