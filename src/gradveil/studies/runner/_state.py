"""A record of the sources by which cells were done: one hash for each, so that it is one state."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from gradveil._files import write_atomically

from ._cell import Cell, module_of
from ._named import names_in
from ._sources import hash_of, source_hashes

_NAME = re.compile(r"[\w.]+|catalog:[\w-]+")


def write_state(cells: Iterable[Cell], path: Path) -> None:
    """Write the hash of every source that the cells depend on, and on which of them each depends.

    Cells are named by the hash of all their sources, as `write_cells` has it. Those of earlier
    sources are left out.
    """
    known: dict[str, dict[str, str]] = {}
    for cell in cells:
        if cell.is_current and cell.sources not in known:
            known[cell.sources] = source_hashes(module_of(cell.kind), names_in(cell.text))
    hashes = dict(
        sorted({name: own for each in known.values() for name, own in each.items()}.items())
    )
    places = {name: place for place, name in enumerate(hashes)}
    lines = {own: sorted(places[name] for name in each) for own, each in sorted(known.items())}
    rows = ",\n".join(f"  {json.dumps(own)}: {json.dumps(line)}" for own, line in lines.items())
    text = f'{{"hashes": {json.dumps(hashes, indent=1)},\n"cells": {{\n{rows}\n}}}}\n'
    write_atomically(path, text)


def read_state(path: Path) -> dict[str, dict[str, str]]:
    """By the hash of all sources of a cell, the hash of each; an error if they do not agree."""
    state = json.loads(path.read_text(encoding="utf-8"))
    hashes = [*state["hashes"].items()]
    known = {own: dict(hashes[place] for place in places) for own, places in state["cells"].items()}
    wrong = [name for name in state["hashes"] if not _NAME.fullmatch(name)]
    wrong += [own for own, each in known.items() if hash_of(each) != own]
    if wrong:
        raise ValueError(
            f"File `{path}` should hold the sources behind each hash. Found {wrong[0]!r}, which"
            " does not fit."
            " Write it again with `gradveil reproduce --only-figures`."
        )
    return known
