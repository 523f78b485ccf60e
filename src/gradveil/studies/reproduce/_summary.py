"""The summary page: an index of all files that were written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gradveil
from gradveil._files import write_atomically
from gradveil.studies.runner import Study, duration_text

_SUFFIXES = ("csv", "json", "npz", "pdf")


@dataclass(frozen=True)
class Written:
    """One study's files: from how many of its cells, and the traceback if something went wrong."""

    name: str
    title: str
    figure: str
    done: int
    total: int
    error: str | None
    older: int = 0
    """How many of the cells an earlier state of the package's sources computed."""

    @property
    def problem(self) -> str | None:
        """The last line of the traceback."""
        return self.error.strip().splitlines()[-1] if self.error else None


def write_summary(
    written: Sequence[Written], others: Iterable[Study], preset: str, folder: Path, seconds: float
) -> None:
    """Write ``report.md``: what was run, and every figure with its numbers.

    Args:
        others: Studies whose files may lie in the folder from an earlier run.
        seconds: Time spent in the cells.
    """
    lines = [
        f"# Reproduction, preset `{preset}`",
        "",
        f"gradveil {gradveil.__version__}; {duration_text(seconds)} spent in the cells behind this"
        " page, each with one thread.",
    ]
    if (folder / "claims.md").exists():
        lines += ["", "[What became of the paper's claims](claims.md)"]
    if (folder / "summary.png").exists():
        lines += ["", "![Verdicts on the claims, and leakage against loss](summary.png)"]
    for each in written:
        cells = f"{each.done} of {each.total} cells{older_text(each)}."
        problem = f" Not drawn: {each.problem}" if each.problem else ""
        lines += _section(each.name, each.title, each.figure, f"{cells}{problem}", folder)
    for study in others:
        if (folder / f"{study.name}.csv").exists():
            lines += _section(study.name, study.title, study.figure, "From an earlier run.", folder)
    write_atomically(folder / "report.md", "\n".join(lines) + "\n")


def older_text(written: Written) -> str:
    """What to say of cells that other sources computed; nothing where there are none."""
    return f", {written.older} of them by earlier sources" if written.older else ""


def _section(name: str, title: str, figure: str, note: str, folder: Path) -> list[str]:
    files = [suffix for suffix in _SUFFIXES if (folder / f"{name}.{suffix}").exists()]
    links = ", ".join(f"[{suffix.upper()}]({name}.{suffix})" for suffix in files)
    lines = ["", f"## {title}", "", f"`{name}`: {figure}. {note} {links}".rstrip()]
    if (folder / f"{name}.png").exists():
        lines += ["", f"![{title}]({name}.png)"]
    return lines
