"""What a study is: cells, a table of numbers from them, and a drawing of the table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from gradveil._files import write_atomically
from gradveil._runner import Cell, Found, Settings, canonical_json

from . import cells, trainings

FUNCTIONS = {
    function.__name__: function
    for function in (
        cells.attack,
        cells.bound,
        cells.candidate_bound,
        cells.estimator_cost,
        cells.estimator_share,
        cells.identification,
        cells.layer_sizes,
        cells.learned_bound,
        cells.plan_quality,
        cells.public_plans,
        trainings.private_training,
        trainings.short_training,
        trainings.training,
        trainings.training_prediction,
    )
}
"""All that run cells, by the names that cells have in `cells.csv`."""

PRESETS = ("quick", "standard", "paper")

Entry = str | int | float | bool | None

Results = Mapping[Cell, Mapping[str, Any]]
"""What the finished cells of one study found; failed and missing ones are not in it."""

AllResults = Mapping[str, Results]
"""The finished cells of every study, by the study's name."""

MEANS = ("mean", "low", "high", "n")
"""Columns of a mean, its 95 % interval and the number of units."""

_NOT_IN_CSV = ("history",)
"""An attack's cost step by step: no figure and no claim is made from it."""

csv.field_size_limit(1 << 26)


def cell_of(name: str, settings: Settings) -> Cell:
    """The cell of a function by its name.

    >>> cell_of("attack", {"ratio": 0.9, "seed": 0}).settings["seed"]
    0
    """
    return Cell(FUNCTIONS[name], settings)


@dataclass(frozen=True)
class Table:
    """The numbers of a figure, and for figures of images their pixels.

    Args:
        columns: Their names.
        rows: One tuple for each row, in the order of the columns; None is a missing entry.
        arrays: Images too large for rows; saved as ``.npz`` beside the table.

    >>> table = Table(("ratio", "mse"), [(0.8, 0.7), (0.9, None)])
    >>> table.column("ratio")
    [0.8, 0.9]
    >>> print(table.as_csv(), end="")
    ratio,mse
    0.8,0.7
    0.9,
    """

    columns: Sequence[str]
    rows: Sequence[tuple[Entry, ...]]
    arrays: Mapping[str, Tensor] = field(default_factory=dict)

    def column(self, name: str) -> list[Entry]:
        """The entries of one column."""
        place = [*self.columns].index(name)
        return [row[place] for row in self.rows]

    def as_dicts(self) -> list[dict[str, Entry]]:
        """Each row by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def as_csv(self) -> str:
        """A header and a line for each row; floats in full, missing entries empty."""
        return _csv(self.columns, self.rows)

    def save(self, stem: Path) -> None:
        """Write ``stem.csv`` and, with arrays, ``stem.npz``."""
        write_atomically(stem.with_name(f"{stem.name}.csv"), self.as_csv())
        if self.arrays:
            packed = io.BytesIO()
            images: dict[str, Any] = {name: a.numpy(force=True) for name, a in self.arrays.items()}
            np.savez_compressed(packed, **images)
            write_atomically(stem.with_name(f"{stem.name}.npz"), packed.getvalue())


@dataclass(frozen=True)
class Study:
    """One figure or table; every method is pure but `draw`, which writes two files."""

    name: str
    """As on the command line and in the names of its files."""
    figure: str = "beyond the paper"
    """Of the paper."""
    needs_arrays: ClassVar[bool] = False
    """Whether its numbers need images, which `cells.csv` does not have."""

    @property
    def title(self) -> str:
        """What it shows."""
        raise NotImplementedError

    def cells(self, preset: str) -> list[Cell]:
        """The grid of a preset: quick, standard or paper."""
        raise NotImplementedError

    def numbers(self, results: Results) -> Table:
        """The numbers of the figure from the cells that are done, which may not be all."""
        raise NotImplementedError

    def draw(self, table: Table, path_stem: Path) -> None:
        """Write ``path_stem.png`` and ``path_stem.pdf`` from the numbers alone."""
        raise NotImplementedError


def write_cells(found: Mapping[Cell, Found], path: Path) -> None:
    """The numbers of finished cells, without images, in an order of their own."""
    rows = [
        (
            cell.name,
            cell.text,
            str(cell.version),
            f"{one.seconds:.3f}",
            canonical_json(numbers_of(one.values), allow_nan=True),
        )
        for cell, one in sorted(found.items(), key=lambda item: (item[0].name, item[0].text))
    ]
    write_atomically(path, _csv(("name", "settings", "version", "seconds", "result"), rows))


def read_cells(path: Path) -> dict[Cell, Found]:
    """The cells of a file that `write_cells` wrote, those of other versions left out."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    try:
        found = {
            cell_of(row["name"], json.loads(row["settings"])): (row["version"], row) for row in rows
        }
        return {
            cell: Found(json.loads(row["result"]), float(row["seconds"]))
            for cell, (version, row) in found.items()
            if str(cell.version) == version
        }
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"File `{path}` should have cells, as `cells.csv` in a folder of results. Found"
            f" {type(error).__name__}: {error}."
        ) from error


def numbers_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a cell found without images and histories."""
    return {
        name: value
        for name, value in values.items()
        if not isinstance(value, Tensor) and name not in _NOT_IN_CSV
    }


def _csv(columns: Iterable[str], rows: Iterable[Iterable[Entry]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
