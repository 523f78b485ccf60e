"""`make reproduce`: run the cells of studies, then write figures and claims from what is found."""

import os
import subprocess
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from gradveil._checks import suggestion
from gradveil._files import write_atomically
from gradveil._runner import Cell, Found, Outcome, Runner, processors, read_cell

from . import studies_beyond, studies_paper
from .cells import DATA_VARIABLE, dataset
from .claims import HEADINGS, Finding, write_claims
from .figures import draw_summary
from .study import AllResults, Study, Table, numbers_of, read_cells, write_cells

STUDIES: dict[str, Study] = {
    study.name: study for study in (*studies_paper.STUDIES, *studies_beyond.STUDIES)
}
"""In the order in which `all` runs them."""

CELLS, COMMIT = "cells.csv", "commit.txt"
"""The numbers of all cells behind a folder's figures and claims, and the code that found them."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True, highlight=False, soft_wrap=True)


@app.command()
def reproduce(
    names: Annotated[list[str], typer.Argument(help="Studies, or `all`.")],
    preset: Annotated[
        Literal["quick", "standard", "paper"], typer.Option(help="How much is run.")
    ] = "quick",
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(help="ray: on RAY_ADDRESS, or here."),
    ] = "local",
    jobs: Annotated[
        int | None, typer.Option(help="Cells at once; all processors if not given.", min=1)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of cells and figures.", file_okay=False)] = Path(
        "reproduction"
    ),
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of official data sets.", exists=True, file_okay=False),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(help="A cells.csv: its cells are not run again.", exists=True, dir_okay=False),
    ] = None,
    time_budget: Annotated[float | None, typer.Option(help="Seconds for running cells.")] = None,
    only_figures: Annotated[bool, typer.Option("--only-figures", help="Run nothing.")] = False,
) -> None:
    """Reproduce figures and claims of the paper.

    Stop it at any time, even by force: what is done stays, and the same command goes on.
    """
    studies = select_studies(names)
    if data is not None:
        os.environ[DATA_VARIABLE] = str(data.resolve())
    done, store = read_cells(known) if known else {}, out / "cells"
    jobs = jobs or (processors() if engine == "local" else None)
    with Runner(store, engine=engine, jobs=jobs) as runner:
        cells = [] if only_figures else missing_cells(studies, preset, store, done)
        outcome = _run(runner, _with_data(cells), time_budget)
    if outcome.stopped == "interrupted":
        console.print("Stopped. What is done is kept: the same command goes on.")
        raise typer.Exit(130)
    folder = out / preset
    commits = {*_commits(store), *(_commits(known.parent) if known else ())}
    whole = write_all(studies, preset, store, folder, done, commits)
    print(f"Figures, numbers and claims are in {folder}.")
    if not whole:
        raise typer.Exit(1)


def select_studies(names: Sequence[str]) -> list[Study]:
    """The named studies without repetition; ``all`` stands for every one."""
    wanted = [each for name in names for each in ([*STUDIES] if name == "all" else [name])]
    for name in wanted:
        if name not in STUDIES:
            raise ValueError(
                f"Studies should be `all` or some of {', '.join(STUDIES)}. Found {name!r}."
                f"{suggestion(name, STUDIES)}"
            )
    return [STUDIES[name] for name in dict.fromkeys(wanted)]


def missing_cells(
    studies: Iterable[Study], preset: str, store: Path, known: Mapping[Cell, Found]
) -> list[Cell]:
    """What is to be run: neither done here nor known. Known cells have no images to be shown."""
    wanted: dict[Cell, bool] = {}
    for study in studies:
        for cell in study.cells(preset):
            wanted[cell] = wanted.get(cell, False) or study.needs_arrays
    return [
        cell
        for cell, arrays in wanted.items()
        if (arrays or cell not in known) and read_cell(store, cell) is None
    ]


def _with_data(cells: list[Cell]) -> list[Cell]:
    """Those whose data this machine has; an error says what to do if these are none."""
    lacking = {}
    for name in sorted({cell.settings["data"] for cell in cells}):
        try:
            dataset(name)
        except FileNotFoundError as error:
            lacking[name] = error
    here = [cell for cell in cells if cell.settings["data"] not in lacking]
    for what_to_do in lacking.values():
        if not here:
            raise what_to_do
        console.print(f"{len(cells) - len(here)} cells are left out. {what_to_do}", markup=False)
    return here


def _run(runner: Runner, cells: list[Cell], time_budget: float | None) -> Outcome:
    """Run under a progress bar, note the commit of what is found, and tell what failed."""
    if cells:
        command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
        commit = done.stdout.strip() or "unknown"  # without git
        _write_commits(runner.folder, {*_commits(runner.folder), commit})
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("cells", total=len(cells))
        outcome = runner.run(cells, time_budget=time_budget, progress=lambda _: bar.advance(task))
    for cell, failure in outcome.failures.items():
        console.print(f"failed: {cell.name} {cell.text}: {failure.message}", markup=False)
    if outcome.failures:
        console.print(next(iter(outcome.failures.values())).traceback, markup=False)
    if outcome.stopped == "time budget":
        console.print("The time budget is spent. The same command goes on.")
    return outcome


def write_all(
    studies: Sequence[Study],
    preset: str,
    store: Path,
    folder: Path,
    known: Mapping[Cell, Found],
    commits: Iterable[str],
) -> bool:
    """Write the studies' numbers and figures, and the claims on all that is done of the preset.

    Returns whether all studies are whole; known cells and the commits may be of elsewhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[Cell, Found] = {}

    def results(study: Study) -> dict[Cell, Mapping[str, Any]]:
        here: dict[Cell, Mapping[str, Any]] = {}
        for cell in dict.fromkeys(study.cells(preset)):
            one = read_cell(store, cell) or known.get(cell)
            if one is not None:
                found[cell] = Found(numbers_of(one.values), one.seconds)
                here[cell] = one.values if study.needs_arrays else found[cell].values
        return here

    whole = [_write_study(study, results(study), preset, folder) for study in studies]
    every = {name: results(study) for name, study in STUDIES.items()}
    if found:
        draw_overview(write_claims(every, folder), every, folder)
        write_cells(found, folder / CELLS)
        _write_commits(folder, commits)
    return all(whole)


def _write_study(
    study: Study, results: Mapping[Cell, Mapping[str, Any]], preset: str, folder: Path
) -> bool:
    """Whether all of its cells are done and nothing went wrong."""
    total = len({*study.cells(preset)})
    print(f"{study.name}: {len(results)} of {total} cells")
    try:
        table = study.numbers(results)
        write_atomically(folder / f"{study.name}.csv", table.as_csv())
        study.draw(table, folder / study.name)
    except Exception:
        console.print(traceback.format_exc(), markup=False)
        return False
    return len(results) == total


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


def _commits(folder: Path) -> list[str]:
    path = folder / COMMIT
    return path.read_text().split() if path.exists() else []


def _write_commits(folder: Path, commits: Iterable[str]) -> None:
    write_atomically(folder / COMMIT, "".join(f"{commit}\n" for commit in sorted(commits)))
