"""Processes killed at random moments, and processes side by side, on one store."""

import random
import subprocess
import time
from contextlib import closing

from gradveil.studies.runner._engine_local import LocalEngine
from gradveil.studies.runner._owner import is_alive
from gradveil.studies.runner._store import Store
from tests.studies import fake
from tests.studies.processes import REPRODUCE, environment, executions, start


def content(folder):
    """The store's own dump and the bytes of every array."""
    arrays = folder / "arrays"
    with closing(Store(folder)) as store:
        files = {path.name: path.read_bytes() for path in arrays.rglob("[!.]*.npy")}
        return store.dump(), files


def undisturbed(folder, cells):
    LocalEngine().run(folder, cells, lambda: None)
    return content(folder)


def test_killed_at_random_moments_the_store_ends_as_if_undisturbed(tmp_path):
    cells, kills, moments = fake.cells(80, seconds=0.01), 8, random.Random(0)
    folder, log = tmp_path / "killed", tmp_path / "log"
    start(tmp_path / "warm-up", cells[:1], tmp_path / "other").join()
    for _ in range(kills):
        goal = len(executions(log)) + moments.randint(0, 4)
        process = start(folder, cells, log)
        while len(executions(log)) < goal:
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.03))
        process.kill()
        process.join()
    assert 0 < len(executions(log)) < len(cells), "The kills should fall amid the work."
    process = start(folder, cells, log)
    process.join()
    assert process.exitcode == 0
    assert len(executions(log)) <= len(cells) + kills
    assert content(folder) == undisturbed(tmp_path / "undisturbed", cells)


def test_two_processes_do_each_cell_once(tmp_path):
    cells, folder, log = fake.cells(60, seconds=0.03), tmp_path / "shared", tmp_path / "log"
    both = [start(folder, cells, log), start(folder, cells[::-1], log)]
    for process in both:
        process.join()
        assert process.exitcode == 0
    order = executions(log)
    each_once = [str(seed) for seed in range(60)]
    assert sorted(order, key=int) == each_once
    assert order not in (each_once, each_once[::-1]), "Both should have worked."
    assert content(folder) == undisturbed(tmp_path / "alone", cells)


def test_a_second_process_takes_over_what_the_first_had_in_flight(tmp_path):
    folder, log = tmp_path / "store", tmp_path / "log"
    slow = fake.cells(1, seconds=3.0)
    first = start(folder, slow, log)
    while not executions(log):
        time.sleep(0.01)
    second = start(folder, slow, log)
    time.sleep(0.3)
    first.kill()
    second.join()
    assert second.exitcode == 0
    assert executions(log) == ["0", "0"]


def test_a_killed_command_takes_its_workers_along_and_the_next_goes_on(tmp_path):
    log, out, cells = tmp_path / "log", tmp_path / "out", fake.SLOW_STUDY.cells("quick")
    command = [*REPRODUCE, f"{fake.__name__}:SLOW_STUDY", "--jobs", "2", "--out", str(out)]
    killed = subprocess.Popen(command, env=environment(log), stderr=subprocess.DEVNULL)
    while len(executions(log)) < 4:
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    _wait_for_workers(out / "store" / "owners")
    assert len(executions(log)) < len(cells)
    go_on = start(out / "store", cells, log)
    go_on.join()
    assert go_on.exitcode == 0
    assert len(executions(log)) <= len(cells) + 2
    assert content(out / "store") == undisturbed(tmp_path / "undisturbed", cells)


def _wait_for_workers(owners):
    """Workers of a killed process end with it; their locks say when."""
    deadline = time.monotonic() + 60
    while any(is_alive(owners, path.stem) for path in owners.glob("*.lock")):
        assert time.monotonic() < deadline, "Workers should end with their parent."
        time.sleep(0.05)
