"""Counts by state, and time left from what cells took."""

import pytest

from gradveil.studies.runner._cell import Cell
from gradveil.studies.runner._status import distinct_cells, study_status, total_status
from gradveil.studies.runner._store import Progress

ATTACKS = [Cell("attack", {"seed": seed}) for seed in range(4)]
TRAININGS = [Cell("train", {"seed": seed}) for seed in range(2)]
WORK = {"figure": ATTACKS, "table": [ATTACKS[0], *TRAININGS]}


def states(**seconds_of_done):
    """All cells pending but those given by kind and seed, as `attack0=2.0`."""
    every = {f"{cell.kind}{cell.settings['seed']}": cell for cell in distinct_cells(WORK)}
    return {
        cell: Progress("done", seconds_of_done[name], None)
        if name in seconds_of_done
        else Progress("pending", None, None)
        for name, cell in every.items()
    }


def test_a_shared_cell_counts_in_both_studies_and_once_in_the_total():
    found = states(attack0=2.0)
    figure, table = study_status(WORK, found)
    total = total_status(WORK, found)
    assert (figure.total, figure.done, figure.remaining) == (4, 1, 3)
    assert (table.total, table.done, table.remaining) == (3, 1, 2)
    assert (total.total, total.done, total.remaining) == (6, 1, 5)


def test_time_left_is_unknown_until_something_is_measured():
    assert total_status(WORK, states()).seconds is None
    everything = {f"attack{i}": 1.0 for i in range(4)} | {"train0": 5.0, "train1": 5.0}
    assert total_status(WORK, states(**everything)).seconds == 0


def test_time_left_follows_the_kind():
    found = states(attack1=2.0, attack2=4.0, train0=100.0)
    figure, table = study_status(WORK, found)
    assert figure.seconds == pytest.approx(2 * 3.0)
    assert table.seconds == pytest.approx(3.0 + 100.0)


def test_an_unmeasured_kind_takes_the_mean_of_all():
    assert study_status(WORK, states(attack1=2.0, attack2=4.0))[1].seconds == pytest.approx(9.0)


def test_running_and_failed_cells_are_counted():
    found = states(attack0=1.0)
    found[ATTACKS[1]] = Progress("running", None, None)
    found[ATTACKS[2]] = Progress("failed", 9.0, "traceback")
    figure = study_status(WORK, found)[0]
    assert (figure.running, figure.failed, figure.remaining) == (1, 1, 1)
    assert figure.seconds == pytest.approx(2.0)
