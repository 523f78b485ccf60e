"""Who works on a cell, in a way that cannot outlive the process."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

_STALE = 24 * 3600.0


class Owner:
    """A name with a locked file; the operating system unlocks it when the process ends.

    There is no clock, no heartbeat and no process number that could be used again: an owner is
    alive exactly as long as its file is locked. SQLite relies on locks of the same kind, so this
    works wherever the store itself does.

    :param folder: Where the owners of a store keep their files.
    :param team: The name of the process that started this one, or a new name.
    """

    def __init__(self, folder: Path, team: str | None = None) -> None:
        self.team = team or new_team()
        self.name = f"{self.team}.{uuid.uuid4().hex[:12]}"
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{self.name}.lock"
        self._file = self._path.open("wb")
        if not _lock(self._file, wait=False):
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
            if not _lock(file, wait=False):
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


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Let one process at a time through, the others wait."""
    with path.open("ab") as file:
        _lock(file, wait=True)
        yield


def _lock(file: IO[bytes], wait: bool) -> bool:
    """Lock an open file until it is closed; False if another holds it and we do not wait."""
    try:
        if fcntl is None:
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except PermissionError:  # how Windows says that another holds it
        return False
    return True
