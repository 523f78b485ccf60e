"""The committed results follow from the committed numbers of their cells."""

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradveil.studies.claims import find, findings, settings_table
from gradveil.studies.reproduce import STUDIES
from gradveil.studies.runner import Cell, StoreResults, read_cells, read_state
from gradveil.studies.runner._cell import module_of
from gradveil.studies.runner._named import names_in

RESULTS = Path(__file__).parents[1] / "results"
CELLS = RESULTS / "cells.csv"
MEGABYTES = 20
WITH_PIXELS = {"mnist-noise-images", "cifar-pruning-images"}
"""Studies whose numbers need the reconstructed images, which are not committed."""


@pytest.fixture(scope="module")
def committed() -> StoreResults:
    """What the committed file has of each study's cells in the preset standard."""
    cells = read_cells(CELLS)
    return {
        name: {
            cell: cells[cell] for cell in dict.fromkeys(study.cells("standard")) if cell in cells
        }
        for name, study in STUDIES.items()
    }


def test_all_cells_are_of_one_state_of_the_sources():
    """The file of the state has one hash for each source, and those of every cell are among it."""
    with open(CELLS, newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    state = read_state(RESULTS / "sources.json")
    assert {row["sources"] for row in rows} == set(state)
    for row in rows:
        cell = Cell(row["kind"], json.loads(row["settings"]))
        assert {module_of(cell.kind), *names_in(cell.text)} <= set(state[row["sources"]])
    assert len({row["version"] for row in rows}) == 1


def test_every_cell_belongs_to_a_study(committed: StoreResults):
    of_studies = {cell for results in committed.values() for cell in results}
    assert set(read_cells(CELLS)) == of_studies


def test_the_files_are_small():
    size = sum(path.stat().st_size for path in RESULTS.iterdir())
    assert size < MEGABYTES << 20


def test_the_committed_claims_are_those_of_the_committed_cells(committed: StoreResults):
    written = json.loads((RESULTS / "claims.json").read_text())
    assert list(different(written, json.loads(json.dumps(findings(committed))))) == []


def test_the_page_has_the_table_of_the_claims(committed: StoreResults):
    page = (RESULTS / "README.md").read_text()
    assert settings_table(find(committed)) in page


WRITTEN = sorted({path.stem for path in RESULTS.glob("*.csv")} & set(STUDIES))


def test_every_study_with_cells_has_its_numbers(committed: StoreResults):
    assert sorted(name for name, results in committed.items() if results) == WRITTEN


@pytest.mark.parametrize("name", sorted(set(WRITTEN) - WITH_PIXELS))
def test_the_committed_numbers_are_those_of_the_committed_cells(name: str, committed: StoreResults):
    written = rows_of((RESULTS / f"{name}.csv").read_text())
    assert list(different(written, rows_of(STUDIES[name].numbers(committed[name]).as_csv()))) == []


def rows_of(text: str) -> list[list[object]]:
    return [[_number(entry) for entry in row] for row in csv.reader(text.splitlines())]


def _number(entry: str) -> object:
    try:
        return float(entry)
    except ValueError:
        return entry


def different(a: object, b: object, place: str = "") -> Iterator[str]:
    """Where two plain values differ by more than rounding."""
    if isinstance(a, dict) and isinstance(b, dict) and set(a) == set(b):
        for name in a:
            yield from different(a[name], b[name], f"{place}.{name}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for number, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from different(x, y, f"{place}[{number}]")
    elif isinstance(a, float) and isinstance(b, float):
        if not (a == b or math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) or (a != a and b != b)):
            yield f"{place}: {a} and {b}"
    elif a != b:
        yield f"{place}: {a!r} and {b!r}"
