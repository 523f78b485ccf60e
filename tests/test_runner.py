"""Cells in files: whole or not at all, whoever runs them and whoever is killed."""

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from gradveil import _runner
from gradveil._runner import Cell, Runner, cell_path, read_cell
from tests import runner_cells as fake
from tests.runner_cells import executions, start


def content(folder):
    """The bytes of every file but for the seconds that its cell took."""
    kept = {path.name: json.loads(path.read_bytes()) for path in folder.glob("[!.]*")}
    for cell in kept.values():
        assert cell.pop("seconds") >= 0
    return json.dumps(kept, sort_keys=True)


def undisturbed(folder, cells):
    with Runner(folder) as runner:
        assert runner.run(cells) == _runner.Outcome({}, None)
    return content(folder)


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.setenv(fake.LOG, str(tmp_path / "log"))
    return tmp_path / "log"


def test_cells_are_named_by_all_they_depend_on():
    cell = Cell(fake.draw, {"ratio": 0.9, "images": (1, 2)})
    assert cell.key == Cell(fake.draw, {"images": [1, 2], "ratio": 0.9}).key
    raised = functools.wraps(fake.draw)(lambda settings: {})
    raised.version = 2
    others = [
        Cell(fake.fail, cell.settings),
        Cell(fake.draw, {**cell.settings, "ratio": 0.8}),
        Cell(raised, cell.settings),
    ]
    assert len({cell.key, *(other.key for other in others)}) == 4


def test_settings_cannot_be_changed_from_outside():
    settings = {"images": [1, 2]}
    cell = Cell(fake.draw, settings)
    settings["images"].append(3)
    cell.settings["images"].append(3)
    assert cell.settings["images"] == [1, 2]
    with pytest.raises(TypeError):
        cell.settings["images"] = 3


def test_settings_should_be_json():
    for bad in (float("nan"), torch.ones(1), {1, 2}):
        with pytest.raises((ValueError, TypeError)):
            Cell(fake.draw, {"bad": bad})


def test_what_was_found_comes_back_as_it_was(tmp_path):
    cells = fake.cells(3)
    undisturbed(tmp_path, cells)
    for cell in cells:
        found, expected = read_cell(tmp_path, cell).values, fake.draw(cell.settings)
        assert set(found) == set(expected)
        for name in ("mean", "infinite", "words"):
            assert found[name] == expected[name]
        for name in ("product", "ranks"):
            assert found[name].dtype == expected[name].dtype
            assert torch.equal(found[name], expected[name])


def test_equal_cells_run_once_and_done_cells_not_again(tmp_path, log):
    cells, seen = fake.cells(3), []
    with Runner(tmp_path / "cells") as runner:
        runner.run([*cells, *cells])
        runner.run(cells, progress=seen.append)
    assert executions(log) == ["0", "1", "2"]
    assert seen == cells


@pytest.mark.parametrize("damage", ["", '{"seconds"', "{}", '{"function": "draw"}'])
def test_a_damaged_file_is_not_read_but_made_again(tmp_path, damage):
    (cell,) = fake.cells(1)
    whole = undisturbed(tmp_path, [cell])
    cell_path(tmp_path, cell).write_text(damage)
    assert read_cell(tmp_path, cell) is None
    assert undisturbed(tmp_path, [cell]) == whole


def test_a_file_of_other_settings_is_not_read(tmp_path):
    one, other = fake.cells(2)
    undisturbed(tmp_path, [one])
    os.rename(cell_path(tmp_path, one), cell_path(tmp_path, other))
    assert read_cell(tmp_path, other) is None


def test_a_failing_cell_fails_alone_and_is_tried_again(tmp_path):
    there = tmp_path / "there"
    there.touch()
    failing, cells = Cell(fake.fail, {"while": str(there)}), fake.cells(2)
    with Runner(tmp_path / "cells") as runner:
        outcome = runner.run([failing, *cells])
        assert outcome.stopped is None
        failure = outcome.failures[failing]
        assert (failure.error, failure.message) == ("ArithmeticError", "the file is there")
        assert "runner_cells.py" in failure.traceback
        assert list(outcome.failures) == [failing]
        assert all(runner.read(cell) for cell in cells)
        there.unlink()
        assert not runner.run([failing]).failures
        assert runner.read(failing).values == {"mean": 1.0}


def test_results_that_are_no_json_fail_with_their_settings(tmp_path):
    with Runner(tmp_path) as runner:
        cell = Cell(_of_objects, {"seed": 7})
        (failed,) = runner.run([cell]).failures
    assert failed.settings["seed"] == 7


def _of_objects(settings):
    return {"object": object()}


def test_a_file_that_cannot_be_written_fails_its_cell(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError("No space left on device")

    cells = fake.cells(2)
    with Runner(tmp_path) as runner:
        monkeypatch.setattr(_runner, "write_atomically", full)
        failures = runner.run(cells).failures
        assert [failure.message for failure in failures.values()] == 2 * ["No space left on device"]
        monkeypatch.undo()
        assert not runner.run(cells).failures


def test_a_cell_has_one_thread_and_a_random_state_of_its_own(tmp_path):
    cell, state = Cell(fake.from_global_state, {}), torch.get_rng_state()
    threads = torch.get_num_threads()
    first = undisturbed(tmp_path / "first", [cell])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert read_cell(tmp_path / "first", cell).values["threads"] == 1
    torch.manual_seed(5)
    assert undisturbed(tmp_path / "second", [*fake.cells(2), cell]) != first
    assert torch.equal(
        read_cell(tmp_path / "first", cell).values["drawn"],
        read_cell(tmp_path / "second", cell).values["drawn"],
    )


def test_what_is_held_is_given_to_every_cell_and_pickled_once_a_process(tmp_path, log):
    cells = [Cell(fake.with_held, {"seed": seed}) for seed in range(6)]
    folders = tmp_path / "one", tmp_path / "two"
    for jobs, folder in enumerate(folders, start=1):
        with Runner(folder, holds=fake.Held("w"), jobs=jobs) as runner:
            runner.run(cells[:3])
            assert runner.run(cells).failures == {}
    assert content(folders[0]) == content(folders[1])
    assert read_cell(folders[0], cells[4]).values == {"word": "w4"}
    assert 1 <= executions(log).count("loaded") <= 2


def test_what_is_held_should_be_picklable_for_other_processes(tmp_path):
    runner = Runner(tmp_path, holds=lambda: None, jobs=2)
    with pytest.raises(TypeError, match="should be picklable"):
        runner.run(fake.cells(2))


def test_processes_write_their_files_and_send_nothing(tmp_path):
    """One that ended amid a long message left its reader waiting for the rest for ever."""
    (cell,) = fake.cells(1)
    processes = _runner._Processes(1, tmp_path, None)
    assert processes.submit(cell).result() is None
    processes.close()
    assert read_cell(tmp_path, cell) is not None


@pytest.mark.slow
def test_processes_give_the_bytes_of_one_and_survive_a_crash(tmp_path, log):
    cells, crash = fake.cells(8), Cell(fake.die, {"seed": 99})
    with Runner(tmp_path / "two", jobs=2) as runner:
        outcome = runner.run([crash, *cells])
    assert outcome.failures.keys() == {crash}
    assert outcome.failures[crash].error == "ProcessDied"
    order = executions(log)
    assert order.count("99") == 2, "A cell that killed its process gets one more chance."
    assert set(order) == {*map(str, range(8)), "99"}
    assert len(order) <= 8 + 2 + 1, "Beside it, at most the cell of the other process ran again."
    assert content(tmp_path / "two") == undisturbed(tmp_path / "one", cells)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_time_budget_ends_a_run_and_the_next_goes_on(tmp_path, log, jobs):
    cells = fake.cells(4, seconds=0.4)
    with Runner(tmp_path / "cells", jobs=jobs) as runner:
        assert runner.run(cells, time_budget=0.1).stopped == "time budget"
        assert not all(runner.read(cell) for cell in cells)
        assert runner.run(cells).stopped is None
    assert content(tmp_path / "cells") == undisturbed(tmp_path / "undisturbed", cells)


def test_killed_at_random_moments_the_folder_ends_as_if_undisturbed(tmp_path):
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


def test_two_runs_at_once_share_a_folder(tmp_path):
    cells, folder, log = fake.cells(60, seconds=0.03), tmp_path / "shared", tmp_path / "log"
    both = [start(folder, cells, log), start(folder, cells[::-1], log)]
    for process in both:
        process.join()
        assert process.exitcode == 0
    order = executions(log)
    assert {*order} == {str(seed) for seed in range(60)}
    assert len(order) <= 62, "A cell is computed twice only where both are at it at once."
    assert content(folder) == undisturbed(tmp_path / "alone", cells)


def test_a_killed_run_takes_its_processes_along_and_the_next_goes_on(tmp_path):
    cells, folder, log = fake.cells(40, seconds=0.05), tmp_path / "cells", tmp_path / "log"
    killed = start(folder, cells, log, jobs=2)
    while len(executions(log)) < 4:
        assert killed.is_alive()
        time.sleep(0.01)
    killed.kill()
    killed.join()
    time.sleep(0.5)
    begun = len(executions(log))
    time.sleep(0.5)
    assert len(executions(log)) == begun < len(cells), "Processes should end with their parent."
    go_on = start(folder, cells, log, jobs=2)
    go_on.join()
    assert go_on.exitcode == 0
    assert len(executions(log)) <= len(cells) + 2
    assert content(folder) == undisturbed(tmp_path / "undisturbed", cells)


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_stops_cleanly_and_keeps_what_is_done(tmp_path, log, jobs):
    folder = tmp_path / "cells"
    code = (
        "from pathlib import Path; from tests import runner_cells as f\n"
        "if __name__ == '__main__':\n"
        f"  f.run(Path({str(folder)!r}), f.cells(400, 0.05), Path({str(log)!r}), {jobs})"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while len(executions(log)) < 5:
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    done = [cell for cell in fake.cells(400, 0.05) if read_cell(folder, cell) is not None]
    assert 3 <= len(done) < 400


def test_old_leftovers_of_killed_runs_are_removed(tmp_path):
    old, new = tmp_path / ".draw-1.json.abc", tmp_path / ".draw-2.json.abc"
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    Runner(tmp_path)
    assert not old.exists()
    assert new.exists()


@pytest.mark.slow
def test_ray_gives_the_bytes_of_this_process(tmp_path):
    pytest.importorskip("ray")
    there = tmp_path / "there"
    there.touch()
    failing = Cell(fake.fail, {"while": str(there)})
    cells = [Cell(fake.with_held, {"seed": seed}) for seed in range(4)]
    code = (
        "import sys; from tests import runner_cells as f\n"
        "from gradveil._runner import Cell, Runner\n"
        f"with Runner({str(tmp_path / 'ray')!r}, engine='ray', jobs=1) as runner:\n"
        "    assert not runner.run([*f.cells(3), Cell(f.from_global_state, {})]).failures\n"
        f"    outcome = runner.run([Cell(f.fail, {{'while': {str(there)!r}}})])\n"
        "    assert [one.error for one in outcome.failures.values()] == ['ArithmeticError']\n"
        f"with Runner({str(tmp_path / 'ray')!r}, engine='ray', jobs=1, holds=f.Held('w')) as r:\n"
        "    assert not r.run([Cell(f.with_held, {'seed': s}) for s in range(4)]).failures\n"
    )
    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=600, check=True)
    undisturbed(tmp_path / "here", [*fake.cells(3), Cell(fake.from_global_state, {})])
    with Runner(tmp_path / "here", holds=fake.Held("w")) as runner:
        assert runner.run([*cells, failing]).failures.keys() == {failing}
    assert content(tmp_path / "ray") == content(tmp_path / "here")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"jobs": 0}, "`jobs` should be an integer of at least 1"),
        ({"engine": "rey"}, "`engine` should be"),
    ],
)
def test_wrong_arguments(tmp_path, wrong, says):
    with pytest.raises(ValueError, match=says):
        Runner(tmp_path, **wrong)
