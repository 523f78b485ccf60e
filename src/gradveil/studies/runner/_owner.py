"""Owners of running cells, marked by file locks that end with their process."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path

from gradveil._files import lock

_STALE = 24 * 3600.0


class Owner:
    """The owner of cells: a name and a file that stays locked until the process ends.

    There is no clock, no heartbeat and no process number that could be used again: an owner is
    alive exactly as long as its file is locked. SQLite relies on locks of the same kind, so this
    works wherever the store itself does.

    Args:
        folder: Where the owners of a store keep their files.
        team: The name of the process that started this one, or a new name.
    """

    def __init__(self, folder: Path, team: str | None = None) -> None:
        self.team = team or new_team()
        self.name = f"{self.team}.{uuid.uuid4().hex[:12]}"
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{self.name}.lock"
        self._file = self._path.open("wb")
        if not lock(self._file, wait=False):
            raise OSError(f"File `{self._path}` should be new. Found it locked.")

    def close(self) -> None:
        """End the ownership."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def new_team() -> str:
    """A name no other process has, with the process number for humans."""
    return f"{os.getpid()}-{uuid.uuid4().hex[:12]}"


def team_of(name: str) -> str:
    """The team of an owner."""
    return name.partition(".")[0]


def is_alive(folder: Path, name: str) -> bool:
    """Whether the process that owns `name` still runs; what a dead one left is removed."""
    path = folder / f"{name}.lock"
    try:
        with path.open("rb+") as file:
            if not lock(file, wait=False):
                return True
    except FileNotFoundError:
        return False
    path.unlink(missing_ok=True)
    return False


def remove_dead(folder: Path) -> None:
    """Remove the files of owners that were killed a day ago or earlier."""
    for path in folder.glob("*.lock"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - _STALE:
                is_alive(folder, path.stem)
