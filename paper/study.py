"""What a study is: cells, a table of numbers from them, and a drawing of the table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

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
Row = dict[str, Entry]

Results = Mapping[Cell, Mapping[str, Any]]
"""What the finished cells of one study found; failed and missing ones are not in it."""

AllResults = Mapping[str, Results]
"""The finished cells of every study, by the study's name."""

MEANS = ("mean", "low", "high", "n")
"""Columns of a mean, its 95 % interval and the number of units."""

csv.field_size_limit(1 << 26)


def cell_of(name: str, settings: Settings) -> Cell:
    """The cell of a function by its name."""
    return Cell(FUNCTIONS[name], settings)


@dataclass(frozen=True)
class Table:
    """The numbers of a figure, None where one is missing; for figures of images their pixels."""

    columns: Sequence[str]
    rows: Sequence[tuple[Entry, ...]]
    arrays: Mapping[str, Tensor] = field(default_factory=dict)

    def where(self, **entries: Entry) -> list[Row]:
        """The rows that have these entries, each by column name."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return [row for row in rows if all(row[name] == entries[name] for name in entries)]

    def column(self, name: str, **entries: Entry) -> list[Entry]:
        """The entries of one column in these rows."""
        return [row[name] for row in self.where(**entries)]

    def as_csv(self) -> str:
        """A header and a line for each row; floats in full, missing entries empty."""
        return _csv(self.columns, self.rows)


@dataclass(frozen=True)
class Study:
    """One figure or table of the paper, or beyond it."""

    name: str
    """As on the command line and in the names of its files."""
    cells: Callable[[str], list[Cell]]
    """The grid of a preset: quick, standard or paper."""
    numbers: Callable[[Results], Table]
    """The numbers of the figure from the cells that are done, which may not be all."""
    draw: Callable[[Table, Path], None]
    """Write ``stem.png`` and ``stem.pdf`` from the numbers alone."""
    needs_arrays: bool = False
    """Whether its numbers need images, which `cells.csv` does not have."""


def product_cells(kind: str, common: Settings, **axes: Iterable[Any]) -> list[Cell]:
    """A cell for each combination of the values of the axes; those of the last one change first."""
    return [
        cell_of(kind, {**common, **dict(zip(axes, values, strict=True))})
        for values in product(*axes.values())
    ]


def first_batches_first(cells: Iterable[Cell]) -> list[Cell]:
    """All on one batch, draw or seed come before the next: a run that is stopped early has all."""

    def place(cell: Cell) -> float:
        settings = cell.settings
        return float(settings["seed"] + settings.get("start", 0) / settings.get("size", 1))

    return sorted(cells, key=place)


def presets(
    standard: Settings, quick: Settings, paper: Settings = MappingProxyType({})
) -> dict[str, dict[str, Any]]:
    """The settings of the three presets, each by what it changes of the standard ones.

    What goes beyond the paper has no settings there.
    """
    return {
        name: {**standard, **own} for name, own in zip(PRESETS, (quick, {}, paper), strict=True)
    }


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
    """What a cell found without images."""
    return {name: value for name, value in values.items() if not isinstance(value, Tensor)}


def _csv(columns: Iterable[str], rows: Iterable[Iterable[Entry]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
