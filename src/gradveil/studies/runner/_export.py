"""The numbers of finished cells in one CSV file, small enough to be kept beside the figures.

Another store takes them from it, so that work goes on elsewhere where it stopped.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import gradveil
from gradveil._files import write_atomically

from ._cell import Cell, Result, Value, canonical_json, key_of
from ._store import Store

COLUMNS = ("kind", "settings", "version", "sources", "key", "seconds", "result")
_LEFT_OUT = ("history",)
"""An attack's cost step by step: no figure and no claim is made from it."""

csv.field_size_limit(1 << 26)


def write_cells(store: Store, cells: Iterable[Cell], path: Path) -> int:
    """Write what finished cells found, without arrays and histories; how many cells there were.

    `sources` is the hash of the source files that the cell depended on, empty where an earlier
    state of the package, which cannot be named any more, did the cell.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    done = store.results(dict.fromkeys(cells))
    progress = store.progress(done)
    rows = [_row(cell, result, progress[cell].seconds or 0.0) for cell, result in done.items()]
    writer.writerows(sorted(rows))
    write_atomically(path, text.getvalue())
    return len(rows)


class Done(NamedTuple):
    """A finished cell under the key that it was done with."""

    cell: Cell
    values: Mapping[str, Value]
    seconds: float


def read_cells(path: Path) -> dict[Cell, Result]:
    """The cells of a file of `write_cells`, each under its key, with what they found."""
    return {done.cell: Result(done.values) for done in read_done(path)}


def read_done(path: Path) -> list[Done]:
    """The rows of a file of `write_cells`."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        found = tuple(next(rows, ()))
        if found != COLUMNS:
            raise ValueError(
                f"File `{path}` should have the columns {[*COLUMNS]}. Found {[*found]}. Name the"
                " `cells.csv` of a reproduction."
            )
        done = [_parsed(path, row) for row in rows]
    keys = [each.cell.key for each in done]
    if len(set(keys)) < len(keys):
        raise ValueError(
            f"File `{path}` should have one row for each cell. Found {len(keys) - len(set(keys))}"
            " more. Write the file again."
        )
    return done


def take_cells(store: Store, cells: Iterable[Cell], done: Iterable[Done]) -> int:
    """Take what was done elsewhere of these cells into a store; how many cells were taken.

    Only cells under the same key are: of the same settings, version and sources. A cell that the
    store has done, or is at, stays as it is. Arrays do not come along: leave out cells whose arrays
    are needed.
    """
    wanted = {cell.key: cell for cell in cells}
    return store.take(
        (each.cell, canonical_json(each.values, allow_nan=True), each.seconds)
        for each in done
        if wanted.get(each.cell.key) == each.cell  # the key alone is no more than a claim
    )


def _row(cell: Cell, result: Result, seconds: float) -> tuple[str, ...]:
    sources = cell.sources if cell.is_current else ""
    values = {name: value for name, value in result.numbers.items() if name not in _LEFT_OUT}
    text = canonical_json(values, allow_nan=True)
    version = gradveil.__version__
    return cell.kind, cell.text, version, sources, cell.key, f"{seconds:.2f}", text


def _parsed(path: Path, row: list[str]) -> Done:
    try:
        kind, settings, version, sources, key, seconds, text = row
        cell, values = Cell.stored(kind, settings, key), json.loads(text)
        took = float(seconds)
        if not isinstance(values, Mapping) or not 0 <= took < math.inf:
            raise ValueError("it should hold numbers by name, and how long they took")
    except ValueError as error:
        raise ValueError(
            f"A row of `{path}` cannot be read: {error}. Write the file again."
        ) from error
    if sources and key != key_of(cell, sources, version):
        raise ValueError(
            f"Each row of `{path}` should have the key of its settings and sources. Found another"
            f" for {settings}. Write the file again with `gradveil reproduce --only-figures`."
        )
    return Done(cell, values, took)
