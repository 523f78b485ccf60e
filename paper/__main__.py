"""`make reproduce`: every figure and every claim of the paper."""

import os
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from gradveil._runner import Cell, Outcome, Runner, processors

from .cells import DATA_VARIABLE
from .reproduce import Known, missing_cells, run_cells, select_studies, without_data, write_all


class Preset(str, Enum):
    """The size of a run."""

    quick = "quick"
    standard = "standard"
    paper = "paper"


class Engine(str, Enum):
    """Where cells run: processes of this machine, or tasks of a Ray cluster."""

    local = "local"
    ray = "ray"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True, highlight=False, soft_wrap=True)


@app.command()
def reproduce(
    names: Annotated[list[str], typer.Argument(help="Studies, or `all`.")],
    preset: Annotated[Preset, typer.Option(help="How much is run.")] = Preset.quick,
    engine: Annotated[Engine, typer.Option(help="Where it is run.")] = Engine.local,
    jobs: Annotated[
        int | None, typer.Option(help="Cells at once; all processors if not given.", min=1)
    ] = None,
    address: Annotated[str | None, typer.Option(help="Of a running Ray cluster.")] = None,
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
    done, store = Known.read(known), out / "cells"
    with Runner(
        store,
        engine=engine.value,
        jobs=jobs or (processors() if engine is Engine.local else None),
        address=address,
    ) as runner:
        cells = [] if only_figures else missing_cells(studies, preset.value, store, done)
        outcome = _run(runner, _with_data(cells), time_budget)
    if outcome.stopped == "interrupted":
        console.print("Stopped. What is done is kept: the same command goes on.")
        raise typer.Exit(130)
    folder = out / preset.value
    written = write_all(studies, preset.value, store, folder, done)
    for each in written:
        print(f"{each.name}: {each.done} of {each.total} cells")
        if each.error:
            console.print(each.error, markup=False)
    print(f"Figures, numbers and claims are in {folder}.")
    if any(each.error or each.done < each.total for each in written):
        raise typer.Exit(1)


def _with_data(cells: list[Cell]) -> list[Cell]:
    """Those whose data are here; an error says what to do if these are none."""
    lacking = without_data(cells)
    here = [cell for cell in cells if cell.settings["data"] not in lacking]
    for error in lacking.values():
        if not here:
            raise error
        console.print(f"{len(cells) - len(here)} cells are left out. {error}", markup=False)
    return here


def _run(runner: Runner, cells: list[Cell], time_budget: float | None) -> Outcome:
    """Run under a progress bar, and tell what failed."""
    texts = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*texts, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("cells", total=len(cells))
        outcome = run_cells(runner, cells, time_budget, lambda cell: bar.advance(task))
    for cell, failure in outcome.failures.items():
        console.print(f"failed: {cell.name} {cell.text}: {failure.message}", markup=False)
    if outcome.failures:
        console.print(next(iter(outcome.failures.values())).traceback, markup=False)
    if outcome.stopped == "time budget":
        console.print("The time budget is spent. The same command goes on.")
    return outcome


if __name__ == "__main__":
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        print(f"reproduce: {error}", file=sys.stderr)
        raise SystemExit(2) from None
