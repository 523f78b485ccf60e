"""The database of a store: its tables, and errors that say what is wrong with a file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from gradveil._files import one_at_a_time

_APPLICATION = 0x67766C31
_LAYOUT = 1
_BUSY_SECONDS = 120.0
_TABLES = (
    """CREATE TABLE cells (
        key TEXT PRIMARY KEY,
        kind TEXT NOT NULL,
        settings TEXT NOT NULL,
        version TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('pending', 'running', 'done', 'failed')),
        owner TEXT,
        result TEXT,
        error TEXT,
        crashes INTEGER NOT NULL DEFAULT 0,
        seconds REAL,
        finished REAL
    ) WITHOUT ROWID""",
    """CREATE TABLE arrays (
        key TEXT NOT NULL REFERENCES cells (key),
        name TEXT NOT NULL,
        checksum TEXT NOT NULL,
        PRIMARY KEY (key, name)
    ) WITHOUT ROWID""",
    "CREATE INDEX cells_by_state ON cells (state)",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_LAYOUT}",
)


class StoreError(ValueError):
    """The error for a file that is not a store, or is a damaged one."""


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database, make its tables if it is new, and look it over."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(path.with_suffix(".lock")):
        connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            _prepare(connection, path)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise StoreError(
                f"File `{path}` should be the database of a store. Found {error}. Move it away (its"
                " cells are then run again), or restore it from a backup."
            ) from error
        except BaseException:
            connection.close()
            raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not tables:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute("COMMIT")
    connection.execute("PRAGMA synchronous = FULL")
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    layout = connection.execute("PRAGMA user_version").fetchone()[0]
    if (application, layout) != (_APPLICATION, _LAYOUT):
        whose = (
            f"layout {layout} of it"
            if application == _APPLICATION
            else "another program's database"
        )
        raise StoreError(
            f"File `{path}` should be the database of a store, layout {_LAYOUT}. Found {whose}."
            " Choose another folder with --out."
        )
    if (verdict := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise sqlite3.DatabaseError(" ".join(verdict.split()))
