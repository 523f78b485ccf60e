"""The file of numbers: what was found comes back, and a row that was changed is refused."""

import math
from contextlib import closing
from pathlib import Path

import pytest

from gradveil.studies.runner import (
    Cell,
    Done,
    Store,
    read_cells,
    read_done,
    read_state,
    take_cells,
    write_cells,
    write_state,
)
from gradveil.studies.runner._engine import work
from gradveil.studies.runner._owner import Owner
from tests.studies import fake


@pytest.fixture
def file(tmp_path: Path) -> Path:
    cells = fake.cells(3)
    with closing(Store(tmp_path / "store")) as store:
        store.want(cells[:2])
        work(store, Owner(store.owners), lambda: None)
        assert write_cells(store, cells, tmp_path / "cells.csv") == 2
    return tmp_path / "cells.csv"


def test_numbers_come_back_without_arrays(file: Path):
    cells = fake.cells(2)
    found = read_cells(file)
    assert set(found) == set(cells)
    assert [cell.key for cell in found] == [Cell(c.kind, c.settings).key for c in found]
    result = found[cells[1]]
    assert result["mean"] == fake.draw(cells[1].settings)["mean"]
    assert math.isinf(result["infinite"])
    assert result["words"] == ["a", {"b": 1}]
    assert "product" not in result


def test_equal_cells_give_equal_files(file: Path, tmp_path: Path):
    with closing(Store(tmp_path / "store")) as store:
        write_cells(store, reversed(fake.cells(2)), tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('""seed"":1', '""seed"":7', "should have the key of its settings"),
        ("kind,settings", "kind,setting", "should have the columns"),
        ('"{""infinite', '"{infinite', "cannot be read"),
        (',"{""infinite', ',"[{""infinite', "cannot be read"),
        (",0.", ",-0.5", "cannot be read"),
    ],
)
def test_a_changed_file_is_refused(file: Path, old: str, new: str, message: str):
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        read_cells(file)


def test_another_store_goes_on_from_the_file(file: Path, tmp_path: Path):
    cells = fake.cells(3)
    with closing(Store(tmp_path / "other")) as store:
        assert take_cells(store, cells, read_done(file)) == 2
        assert take_cells(store, cells, read_done(file)) == 0
        store.want(cells)
        assert store.unfinished() == 1
        found = store.results(cells)
        assert {cell: dict(result) for cell, result in found.items()} == {
            cell: dict(result) for cell, result in read_cells(file).items()
        }
        work(store, Owner(store.owners), lambda: None)
        assert write_cells(store, cells[:2], tmp_path / "again.csv") == 2
    assert (tmp_path / "again.csv").read_bytes() == file.read_bytes()


def test_only_cells_under_the_same_key_are_taken(file: Path, tmp_path: Path):
    changed = [Cell.stored(cell.kind, cell.text, "0" * 64) for cell in fake.cells(2)]
    with closing(Store(tmp_path / "other")) as store:
        assert take_cells(store, changed, read_done(file)) == 0
        assert take_cells(store, fake.cells(3)[2:], read_done(file)) == 0
        assert store.results(fake.cells(3)) == {}


def test_a_row_under_another_cells_key_is_not_taken(file: Path, tmp_path: Path):
    """Without sources, which older cells lack, a file's own keys are not checked."""
    first, second = fake.cells(2)
    swapped = [
        Done(Cell.stored(c.kind, c.text, other.key), {"mean": 0.0}, 1.0)
        for c, other in ((first, second), (second, first))
    ]
    with closing(Store(tmp_path / "other")) as store:
        assert take_cells(store, [first, second], swapped) == 0


def test_a_file_with_a_row_twice_is_refused(file: Path):
    file.write_text(file.read_text() + file.read_text().splitlines()[-1] + "\n")
    with pytest.raises(ValueError, match="one row for each cell"):
        read_done(file)


def test_a_cell_that_somebody_is_at_is_left_alone(file: Path, tmp_path: Path):
    with closing(Store(tmp_path / "other")) as store:
        store.want(fake.cells(2))
        owner = Owner(store.owners)
        claimed = store.claim(owner)
        assert take_cells(store, fake.cells(2), read_done(file)) == 1
        assert claimed is not None
        assert store.progress([claimed])[claimed].state == "running"
        owner.close()


def test_the_state_of_the_sources_comes_back_and_a_changed_one_is_refused(tmp_path: Path):
    path, cells = tmp_path / "sources.json", fake.cells(3)
    older = Cell.stored(cells[2].kind, cells[2].text, "0" * 64)
    write_state([*cells, older], path)
    known = read_state(path)
    assert set(known) == {cell.sources for cell in cells}
    assert all("tests.studies.fake" in each for each in known.values())
    hash_ = known[cells[0].sources]["tests.studies.fake"]
    text = path.read_text()
    for changed in (text.replace(hash_, "0" * 64), text.replace('"tests.studies.fake"', '"a b"')):
        assert changed != text
        path.write_text(changed)
        with pytest.raises(ValueError, match="should hold the sources behind each hash"):
            read_state(path)
