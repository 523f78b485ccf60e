"""Worker processes: the same bytes as in one process, crashes survived, stopped by Ctrl-C."""

import signal
import subprocess
import time
from contextlib import closing

import pytest

from gradveil.studies.runner._cell import Cell
from gradveil.studies.runner._engine_local import LocalEngine
from gradveil.studies.runner._owner import Owner
from gradveil.studies.runner._store import Store
from tests.studies import fake
from tests.studies.processes import REPRODUCE, environment, executions


def test_workers_give_the_bytes_of_one_process_and_survive_a_crash(tmp_path, monkeypatch):
    monkeypatch.setenv(fake.LOG, str(tmp_path / "log"))
    cells = fake.cells(8)
    crash = Cell(f"{fake.__name__}:die", {"seed": 99})
    seen = []
    LocalEngine(2).run(tmp_path / "two", [crash, *cells], lambda: seen.append(1))
    order = executions(tmp_path / "log")
    assert order.count("99") == 2, "A cell that killed its worker gets one more chance."
    assert sorted(order, key=int) == [*map(str, range(8)), "99", "99"]
    assert seen
    with closing(Store(tmp_path / "two")) as store:
        assert store.progress([crash])[crash].state == "failed"
        assert "exit code -9" in store.progress([crash])[crash].error
        found = [line for line in store.dump().splitlines() if crash.key not in line]
    LocalEngine(1).run(tmp_path / "one", cells, lambda: None)
    with closing(Store(tmp_path / "one")) as store:
        assert found == store.dump().splitlines()


def test_a_cell_of_a_killed_run_keeps_its_place_in_the_order(tmp_path, monkeypatch):
    monkeypatch.setenv(fake.LOG, str(tmp_path / "log"))
    cells = fake.cells(4)
    with closing(Store(tmp_path / "store")) as store:
        killed = Owner(store.owners)
        store.want(cells)
        assert store.claim(killed) == cells[0]
        killed._file.close()
    LocalEngine(1).run(tmp_path / "store", cells, lambda: None)
    assert executions(tmp_path / "log") == ["0", "1", "2", "3"]


def test_ctrl_c_stops_cleanly_and_keeps_what_is_done(tmp_path):
    log, out = tmp_path / "log", tmp_path / "out"
    study = f"{fake.__name__}:SLOW_STUDY"
    command = [*REPRODUCE, study, "--jobs", "1", "--out", str(out)]
    process = subprocess.Popen(command, env=environment(log), stderr=subprocess.PIPE, text=True)
    while len(executions(log)) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Stopped. What is done is kept" in errors
    assert "Traceback" not in errors
    cells = fake.SLOW_STUDY.cells("quick")
    with closing(Store(out / "store")) as store:
        states = [each.state for each in store.progress(cells).values()]
    assert states.count("done") >= 2
    assert set(states) == {"done", "pending"}


def test_jobs_should_be_a_count():
    with pytest.raises(ValueError, match="`jobs` should be an integer of at least 1"):
        LocalEngine(0)
