"""The frontier on photos: cells shared with other studies, photos kept apart, plans told apart."""

import pytest

from paper.grids import PHOTO_FRONTIER, contender_of
from paper.reproduce import STUDIES
from tests.paper.synthetic import synthetic_results

STUDY = STUDIES["cifar-frontier"]


@pytest.mark.parametrize("preset", PHOTO_FRONTIER)
def test_a_cell_tells_its_contender(preset):
    grid = PHOTO_FRONTIER[preset]
    assert {contender_of(cell.settings) for cell in grid.cells()} == {*grid.contenders}


def test_attacks_without_a_plan_are_those_of_other_studies():
    others = {
        cell
        for name in ("cifar-adaptive-pruning", "cifar-adaptive-noise")
        for cell in STUDIES[name].cells("standard")
    }
    known = {contender_of(cell.settings) for cell in others}
    own = [c for c in STUDY.cells("standard") if c.name == "attack"]
    assert own
    assert {c for c in own if contender_of(c.settings) in known} <= others


@pytest.mark.parametrize("preset", PHOTO_FRONTIER)
def test_public_photos_are_neither_attacked_nor_trained_on_nor_held_out(preset):
    grid = PHOTO_FRONTIER[preset]
    training = grid.training
    public = range(grid.public["start"], grid.public["start"] + grid.public["examples"])
    first = training["held_out_start"]
    held_out = range(first, first + training["held_out"])
    used = [*grid.starts, *range(training["examples"]), *held_out]
    assert not {*used} & {*public}
    assert len({*used}) == training["examples"] + training["held_out"]


def test_seeds_and_photos_are_enough_to_decide():
    grid = PHOTO_FRONTIER["standard"]
    assert len(grid.starts) >= 16
    assert len(grid.seeds) >= 6


def test_a_store_that_is_stopped_early_has_every_contender():
    cells = STUDY.cells("standard")
    first = {contender_of(c.settings) for c in cells[: len(cells) // 6]}
    assert first == {*PHOTO_FRONTIER["standard"].contenders}


def test_numbers_have_a_row_for_each_contender_and_nothing_of_other_attackers():
    cells = STUDY.cells("standard")
    table = STUDY.numbers(synthetic_results(cells))
    rows = table.where()
    grid = PHOTO_FRONTIER["standard"]
    assert [(r["defense"], r["plan"], r["level"]) for r in rows] == [*grid.contenders]
    assert {r["loss_n"] for r in rows} == {len(grid.seeds)}
    assert {r["aware_n"] for r in rows} == {len(grid.starts)}
    assert not [name for name in rows[0] if name.startswith(("paper", "strong", "identified"))]
