"""The committed results follow from the committed numbers of their cells."""

import csv
import json
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from statistics import mean

import pytest

from paper.claims import Finding, counts_in_words, find, plain, settings_table
from paper.numbers import name_and_level
from paper.reproduce import COMMIT, STUDIES
from paper.study import AllResults, read_cells

RESULTS = Path(__file__).parents[2] / "results"
FOLDERS = {"standard": RESULTS, "paper": RESULTS / "paper"}
"""Where the results of each preset lie."""
MEGABYTES = 20
WITH_PIXELS = {"mnist-noise-images", "cifar-pruning-images"}
"""Studies whose numbers need the reconstructed images, which are not committed."""

SLOW = {"mnist-layer-noise"}
"""An interval for each layer and round: half a minute."""

each_preset = pytest.mark.parametrize("preset", FOLDERS)


@lru_cache
def committed(preset: str) -> AllResults:
    """What the committed file has of each study's cells in a preset."""
    read = read_cells(FOLDERS[preset] / "cells.csv")
    cells = {cell: found.values for cell, found in read.items()}
    return {
        name: {cell: cells[cell] for cell in dict.fromkeys(study.cells(preset)) if cell in cells}
        for name, study in STUDIES.items()
    }


@lru_cache
def found_claims(preset: str) -> list[Finding]:
    return find(committed(preset))


@each_preset
def test_the_folder_says_the_commit_it_was_made_at(preset: str):
    """In full; the page has its beginning."""
    commit = (FOLDERS[preset] / COMMIT).read_text().strip()
    assert re.fullmatch(r"[0-9a-f]{40}", commit)
    assert f"commit {commit[:7]}" in (RESULTS / "README.md").read_text()


@each_preset
def test_every_cell_belongs_to_a_study(preset: str):
    of_studies = {cell for results in committed(preset).values() for cell in results}
    assert set(read_cells(FOLDERS[preset] / "cells.csv")) == of_studies


def test_the_files_are_small():
    size = sum(path.stat().st_size for path in RESULTS.rglob("*"))
    assert size < MEGABYTES << 20


@pytest.mark.slow
@each_preset
def test_the_committed_claims_are_those_of_the_committed_cells(preset: str):
    written = json.loads((FOLDERS[preset] / "claims.json").read_text())
    found = json.loads(json.dumps([plain(one) for one in found_claims(preset)]))
    assert list(different(written, found)) == []


def test_the_page_has_the_table_of_the_claims():
    page = (RESULTS / "README.md").read_text()
    assert settings_table(found_claims("standard")) in page


def test_the_page_says_how_much_was_run():
    page = (RESULTS / "README.md").read_text()
    cells = {cell for study in STUDIES.values() for cell in study.cells("standard")}
    done = {cell for results in committed("standard").values() for cell in results}
    assert f"What was run: {len(done):,} of the {len(cells):,} cells" in page
    lacking = {
        name
        for name, study in STUDIES.items()
        if not {*study.cells("standard")} <= {*committed("standard")[name]}
    }
    named = re.search(r"Not run: (.*?)\.", page)
    assert lacking == ({*re.findall(r"`([a-z0-9-]+)`", named.group(1))} if named else set())


def test_the_page_counts_the_verdicts():
    page = (RESULTS / "README.md").read_text()
    for line in counts_in_words(found_claims("standard")):
        assert line in page


def test_the_page_has_the_numbers_beside_those_of_the_released_code():
    """Errors of the released code's own batch and of the next three, rounded as on the page."""
    page = (RESULTS / "README.md").read_text()
    results = {**committed("paper")["mnist-pruning"], **committed("paper")["mnist-noise"]}
    batches = {
        (*name_and_level(cell.settings["defense"]), cell.settings["start"]): found["unmatched_mse"]
        for cell, found in results.items()
    }
    row = r"^\| `([a-z-]+)` \| ([\d.%-]+) \| [\d.-]+" + 4 * r" \| ([\d.]+)" + r" \|$"
    rows = re.findall(row, page, re.M)
    assert len(rows) == len(RELEASED)
    for name, level, *errors in rows:
        found = [batches[name, RELEASED[name, level], start] for start in (0, 16, 32, 48)]
        assert errors == [f"{mean(own):.2f}" for own in found]


def test_the_page_has_the_errors_of_photos_at_the_papers_width():
    """Of every defense on every pair of photos; a dash stands where the attack was not run."""
    page = (RESULTS / "README.md").read_text()
    cells = [cell for name in PHOTOS for cell in STUDIES[name].cells("paper")]
    attacks = [cell.settings for cell in cells if cell.name == "attack"]
    done = {cell: found for name in PHOTOS for cell, found in committed("paper")[name].items()}
    errors = {
        (cell.settings["defense"], cell.settings["start"]): f"{mean(found['unmatched_mse']):.2f}"
        for cell, found in done.items()
        if cell.name == "attack"
    }
    starts = sorted({settings["start"] for settings in attacks})
    expected = {
        level_entry(*name_and_level(defense)): tuple(
            errors.get((defense, start), "-") for start in starts
        )
        for defense in {settings["defense"] for settings in attacks}
    }
    row = r"^\| `([a-z-]+)` \| ([\d.%-]+)" + len(starts) * r" \| ([\d.]+|-)" + r" \|$"
    rows = [((name, level), tuple(own)) for name, level, *own in re.findall(row, page, re.M)]
    assert sorted(rows) == sorted(expected.items())
    assert f"{len(errors)} of the {len(expected) * len(starts)} attacks" in page


PHOTOS = ("cifar-noise-error", "cifar-pruning-tradeoff")


def level_entry(name: str, level: float | None) -> tuple[str, str]:
    """A defense and its level as the page's tables have them."""
    if level is None:
        return name, "-"
    return name, f"{level:.0%}" if name.endswith("pruning") else f"{level:g}"


RELEASED = {
    level_entry(name, level): level
    for name, levels in {
        "no-defense": (None,),
        "gradient-pruning": (0.8, 0.9, 0.95),
        "optimal-pruning": (0.8, 0.9, 0.95),
        "clamped-noise": (0.01, 0.05),
        "optimal-clamped-noise": (0.01, 0.05, 0.1),
    }.items()
    for level in levels
}
"""What the released code was run with."""


WRITTEN = {
    preset: sorted({path.stem for path in folder.glob("*.csv")} & set(STUDIES))
    for preset, folder in FOLDERS.items()
}


@each_preset
def test_every_study_with_cells_has_its_numbers(preset: str):
    with_cells = sorted(name for name, results in committed(preset).items() if results)
    assert with_cells == WRITTEN[preset]


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        pytest.param(preset, name, marks=[pytest.mark.slow] if name in SLOW else [])
        for preset in FOLDERS
        for name in WRITTEN[preset]
        if name not in WITH_PIXELS
    ],
)
def test_the_committed_numbers_are_those_of_the_committed_cells(preset: str, name: str):
    written = rows_of((FOLDERS[preset] / f"{name}.csv").read_text())
    numbers = STUDIES[name].numbers(committed(preset)[name])
    assert list(different(written, rows_of(numbers.as_csv()))) == []


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
