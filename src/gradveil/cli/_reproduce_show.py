"""What `gradveil reproduce` shows: a bar while it runs, its status, what it wrote."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from gradveil.studies.reproduce import Written, older_text
from gradveil.studies.runner import (
    Cell,
    Store,
    StudyStatus,
    Work,
    distinct_cells,
    duration_text,
    study_status,
    total_status,
)
from gradveil.studies.runner import Progress as CellProgress

from ._format import Format

States = Mapping[Cell, CellProgress]


class RunBar:
    """Cells done, the study at hand, and the time left by what cells of a kind took so far."""

    def __init__(self, console: Console, work: Work, jobs: int) -> None:
        self._work, self._jobs = work, jobs
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        total = len(distinct_cells(work))
        self._task = self._bar.add_task("starting", total=total, note="")

    def __enter__(self) -> "RunBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, states: States) -> None:
        """Bring the bar up to date."""
        total = total_status(self._work, states)
        left = None if total.seconds is None else total.seconds / self._jobs
        failed = f", {total.failed} failed" if total.failed else ""
        self._bar.update(
            self._task,
            description=_current(self._work, states),
            completed=total.done + total.failed,
            note=f"time left: {duration_text(left)}{failed}",
        )


def show_status(store: Store | None, work: Work, jobs: int, format: Format) -> None:
    """Print done, running, failed and remaining cells of each study."""
    states = _states(store, work)
    rows = [*study_status(work, states), total_status(work, states)]
    if format is Format.json:
        print(json.dumps({**_machine_status(rows, jobs), "failures": _failures(work, states)}))
        return
    table = Table(caption=f"Time left with {jobs} cells at once, by what cells took so far.")
    for column in ("study", "cells", "done", "running", "failed", "remaining", "time left"):
        named = column == "study"
        table.add_column(column, justify="left" if named else "right", no_wrap=named)
    for row in rows:
        left = duration_text(None if row.seconds is None else row.seconds / jobs)
        counts = (row.total, row.done, row.running, row.failed, row.remaining)
        table.add_row(row.name, *map(str, counts), left, end_section=row is rows[-2])
    Console().print(table)
    _print_failures(_failures(work, states))


def show_written(
    store: Store, work: Work, written: Sequence[Written], folder: Path, format: Format
) -> bool:
    """Print what was written and what failed; whether all is there."""
    states = _states(store, work)
    failures = _failures(work, states)
    if format is Format.json:
        studies = [dataclasses.asdict(each) for each in written]
        print(json.dumps({"folder": str(folder), "studies": studies, "failures": failures}))
    else:
        for each in written:
            note = f"  not drawn: {each.problem}" if each.problem else ""
            print(f"{each.name}: {each.done} of {each.total} cells{older_text(each)}{note}")
        print(f"Figures, numbers and report.md are in {folder}.")
        _print_failures(failures)
    return not any(each.error or each.done < each.total for each in written)


def _states(store: Store | None, work: Work) -> States:
    cells = distinct_cells(work)
    if store is None:
        return dict.fromkeys(cells, CellProgress("pending", None, None))
    store.release_dead()
    return store.progress(cells)


def _current(work: Work, states: States) -> str:
    """The first study with a running cell, or else with an unfinished one."""
    for wanted in (("running",), ("pending",)):
        for name, cells in work.items():
            if any(states[cell].state in wanted for cell in cells):
                return name
    return "finished"


def _machine_status(rows: Sequence[StudyStatus], jobs: int) -> dict[str, object]:
    *studies, total = [dataclasses.asdict(row) for row in rows]
    return {"jobs": jobs, "studies": studies, "total": total}


def _failures(work: Work, states: States) -> list[dict[str, object]]:
    return [
        {"kind": cell.kind, "settings": dict(cell.settings), "error": states[cell].error}
        for cell in distinct_cells(work)
        if states[cell].state == "failed"
    ]


def _print_failures(failures: Sequence[Mapping[str, object]], most: int = 5) -> None:
    console = Console(stderr=True)
    for failure in failures[:most]:
        last = str(failure["error"]).strip().splitlines()[-1]
        where = json.dumps(failure["settings"])
        console.print(f"failed: {failure['kind']} {where}: {last}", markup=False, soft_wrap=True)
    if failures:
        console.print(
            f"Failed cells: {len(failures)}. `--status --format json` shows their tracebacks,"
            " `--retry-failed` runs them again.",
            soft_wrap=True,
        )
