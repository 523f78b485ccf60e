"""The frontier: every defense early, plans told apart, rows from any part of the cells."""

import pytest
import torch

from gradveil.catalog import build_defense
from paper.grids import (
    FRONTIER,
    LAYERS,
    NO_PLAN,
    PRIVATE,
    PUBLIC,
    attacker_of,
    contender_of,
    spec_of,
)
from paper.numbers import final_losses
from paper.reproduce import STUDIES
from tests.paper.synthetic import synthetic_results

STUDY = STUDIES["frontier"]


@pytest.mark.parametrize("preset", FRONTIER)
def test_a_cell_tells_its_contender(preset):
    grid = FRONTIER[preset]
    every = {*grid.contenders, *grid.others}
    assert {contender_of(cell.settings) for cell in grid.cells()} == every
    for name, plan, level in every:
        defense = build_defense(spec_of((name, plan, level)))
        planned = plan == PRIVATE or not defense.about.needs.sensitivities
        assert planned == (
            defense.about.source == "private" or not defense.about.needs.sensitivities
        )
        assert (plan == NO_PLAN) == (not defense.about.needs.sensitivities)
        assert (plan == LAYERS) == (defense.granularity == "layer")


def test_a_store_that_is_stopped_early_has_every_defense():
    grid, cells = FRONTIER["standard"], STUDY.cells("standard")
    every = {*grid.contenders, *grid.others}
    first = cells[: len(cells) // 4]
    for kind in ("training", "attack", "identification"):
        assert {contender_of(c.settings) for c in first if c.name == kind} == every, kind
    batches = [c.settings["start"] for c in cells if c.name == "attack"]
    assert batches == sorted(batches)


def test_the_defenses_of_claims_have_batches_and_seeds_enough():
    cells = STUDY.cells("standard")

    def count(kind, contender, attacker=None):
        return sum(
            c.name == kind
            and contender_of(c.settings) == contender
            and (attacker is None or attacker_of(c.settings) == attacker)
            for c in cells
        )

    for contender in FRONTIER["standard"].contenders:
        assert count("attack", contender, "aware") == 16
        assert count("training", contender) >= 3
    assert count("training", ("optimal-clamped-noise", PUBLIC, 0.1)) == 6
    assert count("attack", ("optimal-clamped-noise", PRIVATE, 0.1), "aware") >= 6


def test_public_examples_are_neither_trained_on_nor_attacked_nor_held_out():
    for preset, grid in FRONTIER.items():
        public = range(grid.public["start"], grid.public["start"] + grid.public["examples"])
        training = grid.training
        first = training["held_out_start"]
        used = {*range(training["examples"]), *range(first, first + training["held_out"])}
        assert not used & {*public}, preset
        assert max(grid.starts) + 4 <= training["examples"]


@pytest.mark.slow
def test_plans_of_one_defense_have_rows_of_their_own():
    table = STUDY.numbers(synthetic_results(STUDY.cells("standard")))
    rows = {(r["defense"], r["plan"], r["level"]): r for r in table.where()}
    assert {plan for name, plan, _ in rows if name == "optimal-clamped-noise"} == {
        PUBLIC,
        LAYERS,
        PRIVATE,
    }
    row = rows["optimal-pruning", PUBLIC, 0.8]
    assert (row["loss_n"], row["aware_n"], row["strong_n"], row["identified_n"]) == (6, 16, 6, 4)
    assert row["aware_mean"] < row["strong_mean"]  # as planted


def test_a_defense_without_trainings_or_attacks_has_empty_entries():
    cells = [c for c in STUDY.cells("quick") if c.name == "identification"]
    [row, *_] = STUDY.numbers(synthetic_results(cells)).where()
    assert row["loss_mean"] is None
    assert row["aware_mean"] is None
    assert row["identified_mean"] is not None


def test_the_final_loss_is_the_mean_over_the_last_rounds():
    found = final_losses([({"seed": 3}, {"losses": [9.0] * 5 + [1.0, 2.0] * 4})])
    assert found == {(0, 3): torch.tensor([1.5], dtype=torch.float64)}
