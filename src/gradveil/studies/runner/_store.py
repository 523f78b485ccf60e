"""The store: a crash-safe database of cells, their states and their results."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gradveil

from ._arrays import checksum, is_intact, read_array, remove_leftovers, write_array
from ._cell import Cell, Result
from ._owner import Owner, is_alive, remove_dead, team_of
from ._schema import open_database

_CRASHES = 2


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run of a cell: values as JSON and packed arrays, or a traceback."""

    values: str = "{}"
    arrays: Mapping[str, bytes] | None = None
    error: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Progress:
    """The state of one cell: pending, running, done or failed."""

    state: str
    seconds: float | None
    error: str | None


class Store:
    """One SQLite database with a write-ahead log, and large arrays in files beside it.

    Any number of processes of one machine may use one store at once. A cell is claimed in one
    transaction by an `Owner`; it is done when, in one transaction after its arrays are on
    the disk, its values are. What a dead owner had claimed is pending again.

    Args:
        folder: Of the store; made if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.owners = self.folder / "owners"
        self._arrays = self.folder / "arrays"
        self._database = open_database(database_path(self.folder))
        self._database.execute("CREATE TEMP TABLE wanted (key TEXT PRIMARY KEY, place INTEGER)")
        self._wanted: dict[str, Cell] = {}
        remove_leftovers(self._arrays)
        remove_dead(self.owners)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def want(self, cells: Iterable[Cell]) -> None:
        """Set the cells that `claim` hands out, in this order; new ones become pending."""
        self._wanted = {cell.key: cell for cell in cells}
        with self._transaction():
            self._database.execute("DELETE FROM temp.wanted")
            self._database.executemany(
                "INSERT OR IGNORE INTO temp.wanted VALUES (?, ?)",
                [(key, place) for place, key in enumerate(self._wanted)],
            )
            self._add(self._wanted.values())

    def claim(self, owner: Owner) -> Cell | None:
        """Make the first pending cell that is wanted the owner's; None if there is none.

        The cell is the one that was wanted: what the file says of it names no code to run.
        """
        with self._transaction():
            row = self._database.execute(
                "SELECT key FROM temp.wanted JOIN cells USING (key)"
                " WHERE state = 'pending' ORDER BY place LIMIT 1"
            ).fetchone()
            if row is None:
                return None
            (key,) = row
            self._database.execute(
                "UPDATE cells SET state = 'running', owner = ? WHERE key = ?", (owner.name, key)
            )
        return self._wanted[key]

    def finish(self, cell: Cell, owner: Owner, outcome: Outcome) -> None:
        """Keep what a claimed cell gave: its arrays first, then, in one step, all the rest."""
        arrays = outcome.arrays or {}
        for name, data in arrays.items():
            write_array(self._arrays, cell.key, name, data)
        state = "done" if outcome.error is None else "failed"
        result = outcome.values if outcome.error is None else None
        with self._transaction():
            mine = self._database.execute(
                "UPDATE cells SET state = ?, owner = NULL, result = ?, error = ?, seconds = ?,"
                " finished = ? WHERE key = ? AND state = 'running' AND owner = ?",
                (state, result, outcome.error, outcome.seconds, time.time(), cell.key, owner.name),
            )
            if mine.rowcount:
                self._database.executemany(
                    "INSERT OR REPLACE INTO arrays VALUES (?, ?, ?)",
                    [(cell.key, name, checksum(data)) for name, data in arrays.items()],
                )

    def take(self, done: Iterable[tuple[Cell, str, float]]) -> int:
        """Keep what was found elsewhere, as (cell, values, seconds); how many cells were new.

        Cells that are done here, or that somebody is at, stay as they are.
        """
        count = 0
        with self._transaction():
            for cell, values, seconds in done:
                self._add([cell])
                count += self._database.execute(
                    "UPDATE cells SET state = 'done', result = ?, error = NULL, seconds = ?,"
                    " finished = ? WHERE key = ? AND state IN ('pending', 'failed')",
                    (values, seconds, time.time(), cell.key),
                ).rowcount
        return count

    def release(self, owner: str) -> None:
        """Give back what an owner claimed and did not finish."""
        self._database.execute(
            "UPDATE cells SET state = 'pending', owner = NULL"
            " WHERE state = 'running' AND owner = ?",
            (owner,),
        )

    def release_dead(self, but: str | None = None) -> None:
        """Give back what owners claimed who no longer run, other than those of the team `but`."""
        for name in self._running_owners():
            if team_of(name) != but and not is_alive(self.owners, name):
                self.release(name)

    def crashed(self, team: str, reason: str) -> bool:
        """Note that a worker died by itself; a cell that keeps killing workers has failed.

        Returns:
            Whether any dead worker of the team held a cell.
        """
        dead = [name for name in self._running_owners(team) if not is_alive(self.owners, name)]
        for name in dead:
            self._database.execute(
                "UPDATE cells SET crashes = crashes + 1, owner = NULL, error = ?,"
                f" state = CASE WHEN crashes + 1 >= {_CRASHES} THEN 'failed' ELSE 'pending' END"
                " WHERE state = 'running' AND owner = ?",
                (reason, name),
            )
        return bool(dead)

    def retry_failed(self, cells: Iterable[Cell]) -> int:
        """Make failed cells pending again; how many there were."""
        return self._reset([cell.key for cell in cells], "failed")

    def recheck(self, cells: Iterable[Cell]) -> int:
        """Make done cells pending again whose files are damaged; how many there were."""
        damaged = [
            cell.key
            for cell in cells
            if not all(is_intact(self._arrays, cell.key, *kept) for kept in self._kept(cell))
        ]
        return self._reset(damaged, "done")

    def unfinished(self) -> int:
        """How many of the wanted cells are pending or running."""
        counted = self._database.execute(
            "SELECT count(*) FROM temp.wanted JOIN cells USING (key)"
            " WHERE state IN ('pending', 'running')"
        )
        return int(counted.fetchone()[0])

    def progress(self, cells: Iterable[Cell]) -> dict[Cell, Progress]:
        """Where each cell stands; one that the store has never seen is pending."""
        return {cell: self._progress(cell) for cell in cells}

    def results(self, cells: Iterable[Cell]) -> dict[Cell, Result]:
        """The results of those cells that are done."""
        results = {}
        for cell in cells:
            row = self._row("SELECT result FROM cells WHERE key = ? AND state = 'done'", cell)
            if row is not None:
                arrays = {
                    name: partial(read_array, self._arrays, cell.key, name, digest)
                    for name, digest in self._kept(cell)
                }
                results[cell] = Result(json.loads(row[0]), arrays)
        return results

    def with_any_sources(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells, those that are not done as other sources of this version last did them."""
        rows = self._database.execute(
            "SELECT kind, settings, key FROM cells WHERE state = 'done' AND version = ?"
            " ORDER BY finished",
            (gradveil.__version__,),
        ).fetchall()
        done = {key for *_, key in rows}
        last = {(kind, text): key for kind, text, key in rows}
        return [
            cell
            if cell.key in done or (cell.kind, cell.text) not in last
            else Cell.stored(cell.kind, cell.text, last[cell.kind, cell.text])
            for cell in cells
        ]

    def dump(self) -> str:
        """All cells and arrays as text, without times and owners: equal work gives equal text."""
        cells = self._database.execute(
            "SELECT key, kind, settings, version, state, result FROM cells ORDER BY key"
        )
        arrays = self._database.execute("SELECT * FROM arrays ORDER BY key, name")
        return "\n".join(json.dumps(row) for row in [*cells, *arrays])

    def _add(self, cells: Iterable[Cell]) -> None:
        """New ones become pending; the others stay as they are."""
        self._database.executemany(
            "INSERT OR IGNORE INTO cells (key, kind, settings, version, state)"
            " VALUES (?, ?, ?, ?, 'pending')",
            [(cell.key, cell.kind, cell.text, gradveil.__version__) for cell in cells],
        )

    def _running_owners(self, team: str | None = None) -> list[str]:
        owners = self._database.execute("SELECT DISTINCT owner FROM cells WHERE state = 'running'")
        return [name for (name,) in owners.fetchall() if team in (None, team_of(name))]

    def _progress(self, cell: Cell) -> Progress:
        row = self._row("SELECT state, seconds, error FROM cells WHERE key = ?", cell)
        return Progress("pending", None, None) if row is None else Progress(*row)

    def _reset(self, keys: list[str], state: str) -> int:
        count = 0
        with self._transaction():
            for key in keys:
                changed = self._database.execute(
                    "UPDATE cells SET state = 'pending', result = NULL, error = NULL, crashes = 0"
                    " WHERE key = ? AND state = ?",
                    (key, state),
                )
                if changed.rowcount:
                    self._database.execute("DELETE FROM arrays WHERE key = ?", (key,))
                count += changed.rowcount
        return count

    def _kept(self, cell: Cell) -> list[tuple[str, str]]:
        """Names and checksums of a cell's arrays."""
        rows = self._database.execute(
            "SELECT name, checksum FROM arrays WHERE key = ?", (cell.key,)
        )
        return rows.fetchall()

    def _row(self, query: str, cell: Cell) -> Any:
        return self._database.execute(query, (cell.key,)).fetchone()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it or nothing, and nobody else in between."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise OSError(
                f"The store in `{self.folder}` should be writable. Found {error}. What is done is"
                " kept; make room, and run the same again."
            ) from error
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise


def database_path(folder: Path) -> Path:
    """The database of the store in a folder."""
    return folder / "cells.sqlite"
