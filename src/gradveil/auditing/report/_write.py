"""Writes an audit's result as files, each of them atomically."""

import base64
import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gradveil._files import write_atomically
from gradveil.auditing._result import AuditResult
from gradveil.catalog import shown_name

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
    from ._report import write_report

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
