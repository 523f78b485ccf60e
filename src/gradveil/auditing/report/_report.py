"""`report.html`: the whole audit in one file that opens offline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradveil._extras import require
from gradveil._files import write_atomically
from gradveil.auditing._result import AuditResult

from ._answer import Screen, first_screen, machine_summary
from ._charts import View, error_axes, tradeoff_views, utility_axes
from ._curves import all_cost_curves
from ._gallery import gallery, layer_table
from ._layout import Figure
from ._numbers import number, plural
from ._style import attack_names, looks, marks
from ._tables import (
    attack_table,
    details,
    guarantee_table,
    strongest,
    summary_table,
    training_note,
)
from ._words import (
    attacks_judge,
    takeaways,
    threat_model,
    weights,
    what_is_equal,
    what_was_audited,
)

FILE = "report.html"


def write_report(result: AuditResult, folder: Path) -> Path:
    """Write `report.html` into a folder, whole or not at all; returns its path.

    It holds its charts' code, its pictures and its style, and asks for nothing else: a content
    security policy forbids every request. The same result gives the same bytes.
    """
    path = Path(folder) / FILE
    write_atomically(path, render_report(result))
    return path


def render_report(result: AuditResult) -> str:
    """The report as HTML."""
    require("the audit's report", "gradveil[audit]", "jinja2", "plotly")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("gradveil.auditing.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, details=details)
    return environment.get_template(FILE).render(_context(result))


def _context(result: AuditResult) -> Mapping[str, Any]:
    first = first_screen(result)
    views = [] if first else tradeoff_views(result)
    curves = all_cost_curves(result)
    return {
        "first": first,
        "machine": machine_summary(result),
        "model_state": weights(result),
        "result": result,
        "setup": result.setup,
        "audited": what_was_audited(result),
        "equal": what_is_equal(result),
        "takeaways": takeaways(result),
        "judges": attacks_judge(result),
        "summary": summary_table(result),
        "training_note": training_note(result),
        "attacks": attack_table(result),
        "guarantees": guarantee_table(result),
        "cards": [(d, strongest(d)) for d in result.defenses],
        "names": attack_names(result),
        "looks": looks(result),
        "marks": marks(result),
        "utility_axes": utility_axes(result),
        "error_axes": error_axes(result),
        "views": views,
        "charts": _charts(first, views, curves),
        "sections": _sections(first, bool(views), bool(curves)),
        "curves": curves,
        "gallery": gallery(result),
        "layers": layer_table(result),
        "threat": threat_model(result),
        "plural": plural,
        "plotly": _plotly_bundle() if first or _has_charts(views, curves) else None,
    }


def _charts(
    first: Screen | None, views: list[View], curves: Mapping[str, Figure]
) -> dict[str, Mapping[str, Figure]]:
    """The figures by group and name."""
    found: dict[str, Mapping[str, Figure]] = {
        "views": {view.key: view.figure for view in views},
        "curves": curves,
    }
    if first:
        found["frontier"] = first.figures
        found["rounds"] = {"rounds": first.rounds} if first.rounds else {}
    return found


def _sections(first: Screen | None, views: bool, curves: bool) -> list[tuple[str, str]]:
    """What the page leads to."""
    found = [
        ("answers", "Answers", bool(first and first.frontier.answers)),
        ("rounds", "Over rounds", bool(first and first.rounds)),
        ("points", "All points", first is not None),
        ("summary", "Details" if first else "Summary", True),
        ("trade-off", "Trade-off", views),
        ("recovered", "Reconstructions", True),
        ("layers", "Layers", True),
        ("curves", "Attack costs", curves),
        ("threat", "Threat model", True),
        ("guarantees", "Guarantees", True),
        ("reading", "How to read it", True),
        ("again", "Reproduce", True),
    ]
    return [(place, name) for place, name, there in found if there]


def _has_charts(views: list[View], curves: Mapping[str, Figure]) -> bool:
    return bool(curves) or any(view.figure["data"] for view in views)


def _plotly_bundle() -> Any:
    """Plotly's own JavaScript, safe inside a script element."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs().replace("</script", "<\\/script"))
