"""Writes an audit's result as files, each of them atomically: report, tables, pictures."""

import base64
import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from gradveil._files import write_atomically
from gradveil._imports import require
from gradveil.catalog import shown_name

from .._result import AuditResult
from ._charts import frontier_figures, has_beyond, hues, metrics
from ._tables import (
    attack_names,
    attack_table,
    attackers,
    layer_table,
    points_table,
    rounds_table,
    summary_table,
)
from ._words import below_reference, first_sentences, headline, number, what_was_audited

FILE = "report.html"

MOST = 8
"""Pictures in a row of the first screen."""


class Strip(NamedTuple):
    """One row of pictures in the order of the originals."""

    label: str
    pngs: Sequence[str]
    how: str = ""
    """They were rebuilt, for who cannot see them."""
    captions: Sequence[str] = ()


def first_strips(result: AuditResult) -> list[Strip]:
    """The originals, rebuilt without a defense and under the answer; none without pictures."""
    frontier, answer = result.frontier, result.frontier.main
    rows = [("no defense", "without a defense", frontier.undefended)]
    if answer and (found := frontier.setting(answer)):
        missed = "" if answer.reached else " (goal missed)"
        rows.append((answer.name, f"under {answer.name}{missed}", found[1]))
    rebuilt = []
    for name, where, point in rows:
        if (leak := point.strongest) and leak.pictures:
            psnr = f", {number(leak.psnr.mean)} dB" if leak.psnr else ""
            label = f"Rebuilt {where}, round {leak.round}{psnr}"
            rebuilt.append(Strip(label, leak.pictures[:MOST], f" as it was rebuilt under {name}"))
    if not rebuilt or not result.originals:
        return []
    return [Strip("The originals", result.originals[:MOST]), *rebuilt]


def gallery(result: AuditResult) -> dict[str, list[Strip]]:
    """The originals and what each attack made of them, for each defense that has pictures."""
    names, found = attack_names(result), {}
    for defense in result.defenses:
        strips = [Strip("original", result.originals)]
        for attack in defense.attacks:
            name, run = names[attack.attack], attack.runs[0]
            how = f" as {name} rebuilt it under {defense.name}"
            strips += [Strip(name, run.pictures, how, [*map(number, run.psnr or ())])]
        if any(strip.pngs for strip in strips[1:]):
            found[defense.name] = [strip for strip in strips if strip.pngs]
    return found


PARTS = (
    headline, what_was_audited, first_sentences, below_reference, points_table, rounds_table,
    summary_table, attack_table, layer_table, attack_names, attackers, metrics, hues,
    frontier_figures, has_beyond, first_strips, gallery,
)  # fmt: skip
"""What the templates are given of a result, each by its function's name."""


def render_report(result: AuditResult) -> str:
    """The report as HTML: the same result gives the same bytes.

    It holds its charts' code, its pictures and its style, and asks for nothing else: a content
    security policy forbids every request.
    """
    require("the audit's report", "gradveil[audit]", "jinja2", "plotly")
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("gradveil.audit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    parts: dict[str, Any] = {part.__name__: part(result) for part in PARTS}
    parts |= {"result": result, "setup": result.setup, "frontier": result.frontier}
    drawn = any(figure["data"] for figure in parts["frontier_figures"].values())
    # plotly's own JavaScript, safe inside a script element
    plotly = Markup(get_plotlyjs().replace("</script", "<\\/script")) if drawn else None
    return environment.get_template(FILE).render(parts, plotly=plotly)


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
    files: dict[str, str | bytes] = {
        "results.json": result.to_json(),
        "results.csv": csv_text(result.rows()),
        "points.csv": csv_text(result.frontier.rows()),
        **_picture_files(result),
    }
    try:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, content)
        write_atomically(folder / FILE, render_report(result))  # last: it may lack packages
    except OSError as error:
        raise OSError(
            f"Folder `{folder}` should take the results. Found `{error.strerror or error}`. Files"
            " that are there are whole; free some space, or choose another folder."
        ) from error
    return folder / FILE


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
    rows = {"original": result.originals}
    for defense in result.defenses:
        for place, attack in enumerate(defense.attacks, start=1):
            name = f"{defense.name} {place} {shown_name(attack.attack)}".lower()
            rows[re.sub(r"[^a-z0-9]+", "-", name).strip("-")] = attack.runs[0].pictures
    return {
        f"images/{name}-{place}.png": base64.b64decode(png)
        for name, pngs in rows.items()
        for place, png in enumerate(pngs)
    }
