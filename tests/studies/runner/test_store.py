"""What a store promises, without any engine."""

import os
import sqlite3
from contextlib import closing

import pytest
import torch

from gradveil.studies.runner._arrays import DamagedArrayError
from gradveil.studies.runner._cell import Cell
from gradveil.studies.runner._engine import execute, work
from gradveil.studies.runner._owner import Owner
from gradveil.studies.runner._schema import StoreError
from gradveil.studies.runner._store import Outcome, Store, database_path
from tests.studies import fake


@pytest.fixture
def store(tmp_path):
    with closing(Store(tmp_path / "store")) as opened:
        yield opened


@pytest.fixture
def owner(store):
    with closing(Owner(store.owners)) as one:
        yield one


def finished(store, cells):
    store.want(cells)
    work(store, Owner(store.owners), lambda: None)
    return store


def test_cells_are_named_by_all_they_depend_on(monkeypatch):
    cell = Cell("attack", {"ratio": 0.9, "images": (1, 2)})
    assert cell.key == Cell("attack", {"images": [1, 2], "ratio": 0.9}).key
    others = [Cell("train", cell.settings), Cell("attack", {**cell.settings, "ratio": 0.8})]
    monkeypatch.setattr("gradveil.__version__", "0.0.0")
    others.append(Cell("attack", cell.settings))
    assert len({cell.key, *(other.key for other in others)}) == 4


def test_settings_cannot_be_changed_from_outside():
    settings = {"images": [1, 2]}
    cell = Cell("attack", settings)
    settings["images"].append(3)
    cell.settings["images"].append(3)
    assert cell.settings["images"] == [1, 2]
    with pytest.raises(TypeError):
        cell.settings["images"] = 3


def test_settings_should_be_json():
    for bad in (float("nan"), torch.ones(1), {1, 2}):
        with pytest.raises((ValueError, TypeError)):
            Cell("attack", {"bad": bad})


def test_results_come_back_as_they_were(store):
    cells = fake.cells(3)
    results = finished(store, cells).results(cells)
    for cell in cells:
        expected = fake.draw(cell.settings)
        assert set(results[cell]) == set(expected)
        for name in ("mean", "infinite", "words"):
            assert results[cell][name] == expected[name]
        for name in ("product", "ranks"):
            assert results[cell][name].dtype == expected[name].dtype
            assert torch.equal(results[cell][name], expected[name])


def test_a_cell_is_claimed_once(store, owner):
    cells = fake.cells(2)
    store.want(cells)
    with closing(Store(store.folder)) as other, closing(Owner(store.owners)) as rival:
        other.want(cells)
        claimed = [store.claim(owner), other.claim(rival), store.claim(owner), other.claim(rival)]
    assert claimed == [*cells, None, None]


def test_only_a_dead_owners_cells_are_given_back(store, owner):
    cells = fake.cells(2)
    store.want(cells)
    mortal = Owner(store.owners)
    assert store.claim(owner) == cells[0]
    assert store.claim(mortal) == cells[1]
    store.release_dead()
    assert store.claim(owner) is None
    mortal._file.close()
    store.release_dead(but=mortal.team)
    assert store.claim(owner) is None
    store.release_dead()
    assert store.claim(owner) == cells[1]


def test_an_owner_that_lost_its_cell_changes_nothing(store, owner):
    (cell,) = cells = fake.cells(1)
    store.want(cells)
    store.claim(owner)
    store.release(owner.name)
    with closing(Owner(store.owners)) as rival:
        store.claim(rival)
        store.finish(cell, owner, Outcome(error="late"))
        store.finish(cell, rival, execute(cell))
    assert store.progress(cells)[cell].state == "done"


def test_a_failed_cell_keeps_its_traceback_and_is_retried_on_request(store, tmp_path):
    switch = tmp_path / "switch"
    switch.touch()
    bad = Cell(f"{fake.__name__}:fail", {"while": str(switch)})
    cells = [bad, *fake.cells(3)]
    finished(store, cells)
    assert [each.state for each in store.progress(cells).values()] == ["failed"] + ["done"] * 3
    assert "ArithmeticError: the file is there" in store.progress(cells)[bad].error
    assert "in fail" in store.progress(cells)[bad].error
    switch.unlink()
    finished(store, cells)
    assert store.progress(cells)[bad].state == "failed"
    assert store.retry_failed(cells) == 1
    finished(store, cells)
    assert store.progress(cells)[bad].state == "done"
    assert store.progress(cells)[bad].error is None


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "remove"])
def test_a_damaged_array_is_noticed_and_its_cell_run_again(store, harm):
    cells = fake.cells(3)
    before = finished(store, cells).dump()
    path = sorted((store.folder / "arrays").rglob("*.npy"))[0]
    data = path.read_bytes()
    if harm == "remove":
        path.unlink()
    else:
        flipped = data[:-1] + bytes([data[-1] ^ 1])
        path.write_bytes({"flip": flipped, "cut": data[:-8], "empty": b""}[harm])
    (damaged,) = [cell for cell in cells if path.name.startswith(cell.key)]
    with pytest.raises(DamagedArrayError, match="Run `gradveil reproduce` again"):
        dict(store.results(cells)[damaged])
    assert store.recheck(cells) == 1
    assert damaged not in store.results(cells)
    assert finished(store, cells).dump() == before
    assert path.read_bytes() == data


def test_wanting_again_keeps_what_is_done(store):
    cells = fake.cells(3)
    before = finished(store, cells).dump()
    store.want(cells)
    assert store.unfinished() == 0
    assert store.recheck(cells) == 0
    assert store.dump() == before


def test_a_result_that_is_not_json_fails_its_cell():
    outcome = execute(Cell(f"{__name__}:returns_a_set", {}))
    assert "not JSON serializable" in outcome.error


def returns_a_set(settings):
    return {"set": {1, 2}}


def test_an_array_that_cannot_be_written_fails_its_cell(store):
    cells = fake.cells(1)
    (store.folder / "arrays").write_text("in the way")
    finished(store, cells)
    assert store.progress(cells)[cells[0]].state == "failed"
    assert "in finish" in store.progress(cells)[cells[0]].error


def test_what_is_drawn_from_the_global_state_is_the_same_in_any_order(global_rng_watch):
    cell, *others = [Cell(f"{fake.__name__}:from_global_state", {"seed": s}) for s in range(3)]
    torch.set_num_threads(2)
    try:
        first = execute(cell)
        for other in others:
            execute(other)
        again = execute(cell)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert (first.values, first.arrays) == (again.values, again.arrays)
    assert '"threads":1' in first.values


def test_a_foreign_file_is_refused(tmp_path):
    database_path(tmp_path).write_text("Dear diary, " * 200)
    with pytest.raises(StoreError, match="should be the database of a store"):
        Store(tmp_path)
    assert database_path(tmp_path).read_text().startswith("Dear diary")


def test_another_programs_database_is_refused(tmp_path):
    with closing(sqlite3.connect(database_path(tmp_path))) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
        other.commit()
    with pytest.raises(StoreError, match="another program's database"):
        Store(tmp_path)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_truncated_database_is_refused(tmp_path, share):
    with closing(Store(tmp_path)) as store:
        finished(store, fake.cells(30))
    data = database_path(tmp_path).read_bytes()
    database_path(tmp_path).write_bytes(data[: int(len(data) * share)])
    with pytest.raises(StoreError, match="restore it from a backup"):
        Store(tmp_path)


def test_what_killed_processes_left_is_removed_after_a_day(store, owner):
    left = [store.folder / "arrays" / "ab" / ".abc.product.npy.x1", store.owners / "1-a.b.lock"]
    fresh = [left[0].with_name(".abc.product.npy.x2"), store.owners / "1-a.c.lock"]
    alive = store.owners / f"{owner.name}.lock"
    left[0].parent.mkdir(parents=True)
    for path in [*left, *fresh]:
        path.touch()
    for path in [*left, alive]:
        os.utime(path, (0, 0))
    Store(store.folder).close()
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in [*fresh, alive])


def test_a_full_disk_says_so_and_keeps_what_is_done(store):
    cells = fake.cells(400)
    before = finished(store, cells[:2]).dump()
    pages = store._database.execute("PRAGMA page_count").fetchone()[0]
    store._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OSError, match=r"disk is full\. What is done is kept"):
        store.want(cells)
    assert store.dump() == before
