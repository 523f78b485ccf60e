"""A study: a grid of cells, the numbers of a figure from them, and a drawer of those numbers."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from gradveil._files import write_atomically

from ._cell import Cell, Result

PRESETS = ("quick", "standard", "paper")

Entry = str | int | float | bool | None

Results = Mapping[Cell, Result]
"""The finished cells of one study; failed and missing ones are not in it."""

StoreResults = Mapping[str, Results]
"""The finished cells of every study, by the study's name."""


@dataclass(frozen=True)
class Table:
    """The numbers of a figure: typed columns and rows, and for figures of images their pixels.

    Args:
        columns: The type of each column by name: ``str``, ``int``, ``float`` or ``bool``. None
            stands for a missing entry in any of them.
        rows: One tuple for each row, in the order of the columns.
        arrays: Images or curves too large for rows; saved as ``.npz`` beside the table.

    >>> table = Table({"ratio": float, "mse": float}, [(0.8, 0.7), (0.9, None)])
    >>> table.column("ratio")
    [0.8, 0.9]
    >>> print(table.as_csv(), end="")
    ratio,mse
    0.8,0.7
    0.9,
    """

    columns: Mapping[str, type]
    rows: Sequence[tuple[Entry, ...]]
    arrays: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"Each row should have an entry for each of {[*self.columns]}. Found {row!r}."
                )
            for (name, kind), entry in zip(self.columns.items(), row, strict=True):
                _check_entry(entry, kind, name)

    def column(self, name: str) -> list[Entry]:
        """The entries of one column."""
        place = [*self.columns].index(name)
        return [row[place] for row in self.rows]

    def as_dicts(self) -> list[dict[str, Entry]]:
        """Each row by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def as_csv(self) -> str:
        """A header and a line for each row; floats in full, missing entries empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()

    def as_json(self) -> str:
        """Columns with their types and rows by name; NaN and infinities are words."""
        rows = [{name: _plain(entry) for name, entry in row.items()} for row in self.as_dicts()]
        columns = {name: kind.__name__ for name, kind in self.columns.items()}
        return json.dumps({"columns": columns, "rows": rows}, indent=1, allow_nan=False)

    def save(self, stem: Path) -> None:
        """Write ``stem.csv``, ``stem.json`` and, with arrays, ``stem.npz``."""
        write_atomically(stem.with_name(f"{stem.name}.csv"), self.as_csv())
        write_atomically(stem.with_name(f"{stem.name}.json"), self.as_json() + "\n")
        if self.arrays:
            packed = io.BytesIO()
            images: dict[str, Any] = {name: a.numpy(force=True) for name, a in self.arrays.items()}
            np.savez_compressed(packed, **images)
            write_atomically(stem.with_name(f"{stem.name}.npz"), packed.getvalue())


@runtime_checkable
class Study(Protocol):
    """One figure or table; every method is pure but `draw`, which writes two files."""

    @property
    def name(self) -> str:
        """As on the command line and in the names of its files."""

    @property
    def title(self) -> str:
        """What it shows, in a few words."""

    @property
    def figure(self) -> str:
        """The figure or table of the paper, or "beyond the paper"."""

    def cells(self, preset: str) -> list[Cell]:
        """The grid of a preset: quick, standard or paper."""

    def numbers(self, results: Results) -> Table:
        """The numbers of the figure from the cells that are done, which may not be all."""

    def draw(self, table: Table, path_stem: Path) -> None:
        """Write ``path_stem.png`` and ``path_stem.pdf`` from the numbers alone."""


def _check_entry(entry: Entry, kind: type, name: str) -> None:
    allowed = (int, float) if kind is float else (kind,)
    is_other = isinstance(entry, bool) and kind is not bool
    if entry is not None and (is_other or not isinstance(entry, allowed)):
        raise TypeError(
            f"Column `{name}` should hold {kind.__name__}. Found {entry!r}"
            f" ({type(entry).__name__}). Convert it, or use None where there is no number."
        )


def _plain(entry: Entry) -> Entry:
    return str(entry) if isinstance(entry, float) and not math.isfinite(entry) else entry
