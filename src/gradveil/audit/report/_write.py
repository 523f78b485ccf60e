"""Writes an audit's result as files, each of them atomically: report, tables, pictures."""

import base64
import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from gradveil._extras import require
from gradveil._files import write_atomically
from gradveil.catalog import shown_name

from .._result import AuditResult
from ._charts import edge_of, frontier_figures, hues, is_beyond, metrics
from ._gallery import first_strips, gallery
from ._numbers import number
from ._tables import (
    attack_names,
    attack_table,
    layer_table,
    points_table,
    rounds_table,
    summary_table,
)
from ._words import (
    audited,
    below_reference,
    first_sentences,
    headline,
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
        loader=PackageLoader("gradveil.audit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    return environment.get_template(FILE).render(_context(result))


def _context(result: AuditResult) -> Mapping[str, Any]:
    frontier, edge = result.frontier, edge_of(result)
    charts, names = frontier_figures(result), attack_names(result)
    points = [point for _, point in frontier.all_points()]
    knows = {a.attack: a.knows_defense for d in result.defenses for a in d.attacks}
    return {
        "result": result,
        "setup": result.setup,
        "frontier": frontier,
        "swept": bool(frontier.answers) or any(len(c.points) > 1 for c in frontier.curves),
        "headline": headline(result),
        "audited": audited(result),
        "sentences": first_sentences(result),
        "strips": first_strips(result),
        "metrics": metrics(result),
        "edge": any(is_beyond(point, edge) for point in points),
        "rounds": rounds_table(result) if len(frontier.moments) > 1 else None,
        "points": points_table(result),
        "below_reference": below_reference(result),
        "summary": summary_table(result),
        "attacks": attack_table(result),
        "names": names,
        "hues": hues(result),
        "gallery": gallery(result),
        "layers": layer_table(result),
        "attackers": {w: [names[a] for a in knows if knows[a] is w] for w in (True, False)},
        "charts": charts,
        "plotly": _plotly_bundle() if any(one["data"] for one in charts.values()) else None,
    }


def _plotly_bundle() -> Any:
    """Plotly's own JavaScript, safe inside a script element."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs().replace("</script", "<\\/script"))


def check_folder(folder: Path) -> None:
    """Require a folder that can be made and written, before hours of work; it is left as it was."""
    made = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
        found = f"that `{file}` is a file" if file else f"`{error.strerror}` for `{folder}`"
        raise type(error)(
            f"Parameter `out` should be a folder that can be written. Found {found}. Choose"
            " another."
        ) from error
    finally:
        for path in (path for path in made if path.exists()):
            path.rmdir()


def write_results(result: AuditResult, folder: Path) -> Path:
    """Write results.json, results.csv, points.csv (all strengths), images and report.html.

    Returns the report's path.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "results.json", result.to_json())
        write_atomically(folder / "results.csv", csv_text(result.rows()))
        write_atomically(folder / "points.csv", csv_text(result.frontier.rows()))
        for name, content in _picture_files(result).items():
            (folder / "images").mkdir(exist_ok=True)
            write_atomically(folder / "images" / name, content)
        return write_report(result, folder)
    except OSError as error:
        raise OSError(
            f"Folder `{folder}` should take the results. Found `{error.strerror or error}`. Files"
            " that are there are whole; free some space, or choose another folder."
        ) from error


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line for each row; nothing but a header without any."""
    text = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, fieldnames=[*names] or ["name"])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _picture_files(result: AuditResult) -> dict[str, bytes]:
    """The PNG files of the first batch: originals and matched reconstructions."""
    files = {f"original-{i}.png": png for i, png in enumerate(result.originals)}
    for defense in result.defenses:
        for place, attack in enumerate(defense.attacks, start=1):
            name = f"{defense.name} {place} {shown_name(attack.attack)}".lower()
            stem = re.sub(r"[^a-z0-9]+", "-", name).strip("-")
            pictures = attack.runs[0].pictures
            files |= {f"{stem}-{i}.png": png for i, png in enumerate(pictures)}
    return {name: base64.b64decode(png) for name, png in files.items()}
