"""The file of numbers: what was found comes back, and a row that was changed is refused."""

import math
from contextlib import closing
from pathlib import Path

import pytest

from gradveil.studies.runner import Cell, Store, read_cells, write_cells
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
    ],
)
def test_a_changed_file_is_refused(file: Path, old: str, new: str, message: str):
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        read_cells(file)
