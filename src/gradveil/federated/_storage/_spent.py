"""How many private releases were begun, on disk before each of them."""

import json
from pathlib import Path

from gradveil._files import write_atomically

SPENT = "spent.json"


def note_releases(folder: Path, count: int) -> None:
    """Write down that so many releases were begun; call it before the last of them is made."""
    write_atomically(folder / SPENT, json.dumps({"releases": count}))


def noted_releases(folder: Path) -> int:
    """How many were begun; 0 if none was noted.

    A checkpoint may be older: rounds after it were released, too, though a resumed run plays them
    again.
    """
    path = folder / SPENT
    return int(json.loads(path.read_text())["releases"]) if path.exists() else 0
