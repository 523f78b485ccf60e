"""Writes an audit's result as files, each of them atomically: report, tables, pictures."""

import base64
import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gradveil._extras import require
from gradveil._files import write_atomically
from gradveil.catalog import shown_name

from .._result import AuditResult
from ._charts import View, all_cost_curves, error_axes, tradeoff_views, utility_axes
from ._first import Screen, first_screen, machine_summary
from ._gallery import gallery, layer_table
from ._numbers import Figure, number, plural
from ._style import attack_names, looks, marks
from ._tables import attack_table, details, guarantee_table, strongest, summary_table, training_note
from ._words import attacks_judge, takeaways, threat_model, weights, what_is_equal, what_was_audited

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
        loader=PackageLoader("gradveil.audit.report"),
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


JSON, CSV, POINTS, PICTURES = "results.json", "results.csv", "points.csv", "images"


def check_folder(folder: Path) -> None:
    """Require a folder that can be made and written; it is left as it was found."""
    with output_folder(folder, keep=False):
        pass


@contextmanager
def output_folder(folder: Path, keep: bool = True) -> Iterator[None]:
    """A folder that can be written, for the work inside; if that fails, it leaves no trace."""
    made = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
    try:
        prepare_folder(folder)
        yield
    except Exception:
        keep = False
        raise
    finally:
        if not keep:
            _remove_empty(made)


def _remove_empty(folders: Sequence[Path]) -> None:
    with suppress(OSError):  # something is in it, or it was never made
        for path in folders:
            path.rmdir()


def prepare_folder(folder: Path) -> None:
    """Make the folder and find out that it can be written, before hours of work."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(
            f"Parameter `out` should be a folder. Found that `{nearest}` is a file."
        )
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(probe, "")
        probe.unlink()
    except OSError as error:
        raise type(error)(
            f"Parameter `out` should be a folder that can be written. Found `{error.strerror}` for"
            f" `{folder}`. Choose another."
        ) from error


def write_results(result: AuditResult, folder: Path) -> Path:
    """Write results.json, results.csv, points.csv (over strengths), images and report.html.

    Returns the report's path.
    """
    try:
        return _write(result, folder)
    except OSError as error:
        raise OSError(
            f"Folder `{folder}` should take the results. Found `{error.strerror or error}`. Files"
            " that are there are whole; free some space, or choose another folder."
        ) from error


def _write(result: AuditResult, folder: Path) -> Path:

    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / JSON, result.to_json())
    write_atomically(folder / CSV, as_csv(result))
    if result.frontier is not None:
        write_atomically(folder / POINTS, _csv(result.frontier.rows()))
    images = picture_files(result)
    if images:
        (folder / PICTURES).mkdir(exist_ok=True)
    for name, content in images.items():
        write_atomically(folder / PICTURES / name, content)
    return write_report(result, folder)


def as_csv(result: AuditResult) -> str:
    """One line for each defense and attack; nothing but a header without attacks."""
    return _csv(result.rows())


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else ["name"])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def picture_files(result: AuditResult) -> dict[str, bytes]:
    """The PNG files of the first batch: originals and matched reconstructions."""
    files = {f"original-{i}.png": png for i, png in enumerate(result.originals)}
    for defense in result.defenses:
        for place, attack in enumerate(defense.attacks, start=1):
            name = f"{_plain(defense.name)}-{place}-{_plain(shown_name(attack.attack))}"
            pictures = attack.runs[0].pictures
            files |= {f"{name}-{i}.png": png for i, png in enumerate(pictures)}
    return {name: base64.b64decode(png) for name, png in files.items()}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
