"""From the names of studies to their figures: run the cells, then write all from their files."""

from __future__ import annotations

import subprocess
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradveil._checks import check_choice, suggestion
from gradveil._files import write_atomically
from gradveil._runner import Cell, Found, Outcome, Runner, read_cell

from . import studies_attackers, studies_paper, studies_plans, studies_training
from .cells import dataset
from .claims import HEADINGS, Finding, write_claims
from .figures import draw_summary
from .study import PRESETS, AllResults, Study, Table, numbers_of, read_cells, write_cells

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        *studies_paper.STUDIES,
        *studies_attackers.STUDIES,
        *studies_plans.STUDIES,
        *studies_training.STUDIES,
    )
}
"""In the order in which `all` runs them."""

CELLS, COMMIT = "cells.csv", "commit.txt"
"""The numbers of all cells behind a folder's figures and claims, and the code that found them."""


def select_studies(names: Sequence[str]) -> list[Study]:
    """The named studies without repetition; ``all`` stands for every one."""
    wanted = [each for name in names for each in ([*STUDIES] if name == "all" else [name])]
    for name in wanted or [""]:
        if name not in STUDIES:
            raise ValueError(
                f"Studies should be `all` or some of {', '.join(STUDIES)}. Found {name!r}."
                f"{suggestion(name, STUDIES)}"
            )
    return [STUDIES[name] for name in dict.fromkeys(wanted)]


@dataclass(frozen=True)
class Known:
    """Cells that were done elsewhere, and the commits they are of."""

    cells: Mapping[Cell, Found]
    commits: tuple[str, ...]

    @classmethod
    def read(cls, path: Path | None) -> Known:
        """A `cells.csv`, with the `commit.txt` beside it."""
        if path is None:
            return cls({}, ())
        beside = path.parent / COMMIT
        return cls(read_cells(path), tuple(beside.read_text().split()) if beside.exists() else ())


def missing_cells(studies: Iterable[Study], preset: str, store: Path, known: Known) -> list[Cell]:
    """What is to be run: neither done here nor known. Known cells have no images to be shown."""
    check_choice(preset, "preset", PRESETS)
    wanted: dict[Cell, bool] = {}
    for study in studies:
        for cell in study.cells(preset):
            wanted[cell] = wanted.get(cell, False) or study.needs_arrays
    return [
        cell
        for cell, arrays in wanted.items()
        if (arrays or cell not in known.cells) and read_cell(store, cell) is None
    ]


def without_data(cells: Iterable[Cell]) -> dict[str, FileNotFoundError]:
    """The data sets that cells name and that this machine lacks, with what is to be done."""
    lacking = {}
    for name in sorted({cell.settings["data"] for cell in cells}):
        try:
            dataset(name)
        except FileNotFoundError as error:
            lacking[name] = error
    return lacking


def run_cells(
    runner: Runner,
    cells: Sequence[Cell],
    time_budget: float | None = None,
    progress: Callable[[Cell], None] | None = None,
) -> Outcome:
    """Run cells, and note the commit of what they find."""
    if cells:
        _note_commit(runner.folder)
    return runner.run(cells, time_budget=time_budget, progress=progress)


@dataclass(frozen=True)
class Written:
    """One study's files: from how many of its cells, and the traceback if something went wrong."""

    name: str
    done: int
    total: int
    error: str | None


def write_all(
    studies: Sequence[Study], preset: str, store: Path, folder: Path, known: Known
) -> list[Written]:
    """Write the studies' numbers and figures, and the claims on all that is done of the preset."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[Cell, Found] = {}

    def results(study: Study) -> dict[Cell, Mapping[str, object]]:
        here: dict[Cell, Mapping[str, object]] = {}
        for cell in dict.fromkeys(study.cells(preset)):
            one = read_cell(store, cell) or known.cells.get(cell)
            if one is not None:
                found[cell] = Found(numbers_of(one.values), one.seconds)
                here[cell] = one.values if study.needs_arrays else found[cell].values
        return here

    written = [_write_study(study, results(study), preset, folder) for study in studies]
    every = {name: results(study) for name, study in STUDIES.items()}
    if found:
        draw_overview(write_claims(every, folder), every, folder)
        write_cells(found, folder / CELLS)
        commits = {*known.commits, *_commits(store)}
        write_atomically(folder / COMMIT, "".join(f"{commit}\n" for commit in sorted(commits)))
    return written


def _write_study(
    study: Study, results: Mapping[Cell, Mapping[str, object]], preset: str, folder: Path
) -> Written:
    error = None
    try:
        table = study.numbers(results)
        write_atomically(folder / f"{study.name}.csv", table.as_csv())
        study.draw(table, folder / study.name)
    except Exception:
        error = traceback.format_exc()
    return Written(study.name, len(results), len({*study.cells(preset)}), error)


def draw_overview(findings: Iterable[Finding], results: AllResults, folder: Path) -> None:
    """Write ``summary.png`` and ``summary.pdf``: the verdicts on all claims, and the frontier."""
    rows = [
        (found.claim.name, found.claim.short, HEADINGS[found.setting], found.judgement.verdict)
        for found in findings
        if found.setting
    ]
    verdicts = Table(("name", "claim", "setting", "verdict"), rows)
    frontier = STUDIES["frontier"].numbers(results.get("frontier", {}))
    draw_summary(folder / "summary", verdicts, frontier)


def _note_commit(store: Path) -> None:
    """Keep the commit that is checked out beside the cells that it finds; "unknown" without git."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    commits = {*_commits(store), done.stdout.strip() or "unknown"}
    write_atomically(store / COMMIT, "".join(f"{commit}\n" for commit in sorted(commits)))


def _commits(store: Path) -> list[str]:
    path = store / COMMIT
    return path.read_text().split() if path.exists() else []
