"""From the names of studies to their figures: run the cells, then write all from the store."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradveil._checks import check_choice
from gradveil.data import dataset_names
from gradveil.studies.cells import OFFICIAL, PHOTOS, check_photos, dataset
from gradveil.studies.claims import write_claims
from gradveil.studies.runner import (
    PRESETS,
    Cell,
    Done,
    Engine,
    Progress,
    Store,
    Study,
    Work,
    distinct_cells,
    take_cells,
    throttled,
    write_cells,
    write_state,
)

from ._overview import draw_overview
from ._registry import STUDIES
from ._summary import Written, write_summary

CELLS = "cells.csv"
"""The numbers of all cells behind the figures and claims of a folder."""
SOURCES = "sources.json"
"""The hashes of all sources that these cells depend on."""

LACKING = ("ModuleNotFoundError", "ImportError", "FileNotFoundError")
"""Errors of cells that run again by themselves, once what they lacked is there."""

Show = Callable[[Mapping[Cell, Progress]], None]
"""Called with the state of every cell, about once a second."""


@dataclass(frozen=True)
class Prepared:
    """Counts of cells to run again: damaged files, and failed cells if the user asked."""

    damaged: int
    retried: int
    lacking: int = 0
    """Cells that failed for want of a package or of a file of data."""


def work_of(studies: Sequence[Study], preset: str) -> dict[str, list[Cell]]:
    """The cells of each study."""
    check_choice(preset, "preset", PRESETS)
    return {study.name: study.cells(preset) for study in studies}


def check_data(work: Work, *, photos: bool = True) -> None:
    """Require the data that cells name before any of them runs and fails.

    That is the official files, and the packages that carry the embedded samples. Without `photos`,
    cells may lack those of CIFAR-10, which few of many need: these fail and say so.
    """
    named = {str(cell.settings.get("data")) for cell in distinct_cells(work)}
    for name in sorted(named & {*OFFICIAL, *dataset_names()}):
        dataset(name)
    if photos and PHOTOS in named:
        check_photos()


def prepare(store: Store, work: Work, retry_failed: bool) -> Prepared:
    """Make ready for a run what an earlier one left."""
    cells = distinct_cells(work)
    retried = store.retry_failed(cells) if retry_failed else 0
    states = store.progress(cells)
    lacking = [cell for cell in cells if _lacked_something(states[cell])]
    again = store.retry_failed(lacking) if lacking else 0
    return Prepared(damaged=store.recheck(cells), retried=retried, lacking=again)


def take_known(
    store: Store, studies: Sequence[Study], preset: str, known: Sequence[Done], *, runs: bool = True
) -> int:
    """Take what was done elsewhere of the preset into the store; how many cells were new.

    These are cells of all registered studies and of the given ones. Arrays do not come along: where
    the studies are to be run, cells of those that say `needs_arrays`, for example to show images,
    are left to be run again.
    """
    every = [*STUDIES.values(), *studies]
    whole = [study for study in studies if runs and _needs_arrays(study)]
    cells, needed = (
        {cell for study in some for cell in study.cells(preset)} for some in (every, whole)
    )
    return take_cells(store, cells - needed, known)


def left_to_run(
    store: Store | None, studies: Sequence[Study], work: Work, known: Sequence[Done]
) -> dict[str, list[Cell]]:
    """The cells that neither are done in the store, if there is one, nor known from elsewhere."""
    keys = {done.cell.key for done in known}
    whole = {study.name for study in studies if _needs_arrays(study)}
    states = {} if store is None else store.progress(distinct_cells(work))
    finished = {cell for cell, progress in states.items() if progress.state == "done"}
    return {
        name: [c for c in cells if c not in finished and (name in whole or c.key not in keys)]
        for name, cells in work.items()
    }


def _needs_arrays(study: Study) -> bool:
    """Whether it needs more of its cells than numbers, such as images to show."""
    return bool(getattr(study, "needs_arrays", False))


def _lacked_something(progress: Progress) -> bool:
    """Whether a cell failed for want of a package or of data, which may be there by now."""
    lines = (progress.error or "").strip().splitlines()
    last = lines[-1] if lines else ""
    return progress.state == "failed" and last.startswith(LACKING)


def run_cells(store: Store, work: Work, engine: Engine, show: Show) -> None:
    """Run what is not done; returns when each cell is done or has failed."""
    cells = distinct_cells(work)
    watch = throttled(lambda: show(store.progress(cells)))
    engine.run(store.folder, cells, watch)
    show(store.progress(cells))


def write_all(
    store: Store,
    studies: Sequence[Study],
    preset: str,
    folder: Path,
    *,
    any_sources: bool = False,
) -> list[Written]:
    """Write the studies' numbers and figures, the claims, the cells and a summary, from the store.

    Claims, cells and summary cover all that the store holds of the preset, whatever studies were
    named.

    Args:
        store: What is done.
        studies: Whose figures to write.
        preset: Quick, standard or paper.
        folder: Where to write.
        any_sources: Whether a cell that is not done counts as done where an earlier state of the
            package's sources did it.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def cells_of(study: Study) -> list[Cell]:
        cells = list(dict.fromkeys(study.cells(preset)))
        return store.with_any_sources(cells) if any_sources else cells

    written = [_write_study(store, study, cells_of(study), folder) for study in studies]
    every = {name: store.results(cells_of(study)) for name, study in STUDIES.items()}
    if any(every.values()):
        draw_overview(write_claims(every, folder), every, folder)
        cells = [cell for results in every.values() for cell in results]
        write_cells(store, cells, folder / CELLS)
        write_state(cells, folder / SOURCES)
    others = [study for name, study in STUDIES.items() if name not in {w.name for w in written}]
    write_summary(written, others, preset, folder, _seconds(store, [*studies, *others], preset))
    return written


def _write_study(store: Store, study: Study, cells: list[Cell], folder: Path) -> Written:
    results = store.results(cells)
    older = sum(not cell.is_current for cell in results)
    error = None
    try:
        table = study.numbers(results)
        table.save(folder / study.name)
        study.draw(table, folder / study.name)
    except Exception:
        error = traceback.format_exc()
    return Written(study.name, study.title, study.figure, len(results), len(cells), error, older)


def _seconds(store: Store, studies: Sequence[Study], preset: str) -> float:
    """Time spent in the done cells of a preset."""
    cells = distinct_cells(work_of(studies, preset))
    progress = store.progress(cells).values()
    return sum(each.seconds or 0.0 for each in progress if each.state == "done")
