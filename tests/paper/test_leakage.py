"""Leakage through training: every defense early, guesses beside, and what cannot be judged."""

import pytest

from paper import figures
from paper.reproduce import STUDIES
from paper.studies_beyond import LEAKAGE, LEAKAGE_DEFENSES
from tests.paper.synthetic import synthetic_results

STUDY = STUDIES["leakage-through-training"]


def with_errors(results, error):
    """The same cells, with one error for each undefended image."""
    return {
        cell: {**result, "mse": [error] * 4}
        if cell.name == "attack" and cell.settings["defense"] == "no-defense"
        else result
        for cell, result in results.items()
    }


def test_the_first_batch_of_all_defenses_and_stages_comes_first():
    grid, cells = LEAKAGE["standard"], STUDY.cells("standard")
    assert len(cells) == len(set(cells)) == 12 * (2 * 6 + 4)
    first = cells[: 3 * len(grid["trained"]) * len(LEAKAGE_DEFENSES)]
    assert {c.settings["start"] for c in first} == {0}
    assert {c.settings["defense"] for c in first} == set(LEAKAGE_DEFENSES)
    assert {c.settings.get("mechanism") for c in first} == {"known", "unknown", None}


def test_plans_of_optimal_noise_are_public_in_every_cell():
    for cell in STUDY.cells("standard"):
        planned = bool(cell.settings.get("public"))
        assert planned == cell.settings["defense"].startswith("optimal")


@pytest.mark.parametrize(("error", "judges"), [(0.1, True), (0.74, False)])
def test_an_attack_that_does_not_beat_the_guess_without_a_defense_cannot_judge(error, judges):
    table = STUDY.numbers(with_errors(synthetic_results(STUDY.cells("quick")), error))
    rows = [row for row in table.where() if row["metric"] == "mse"]
    assert len(rows) == 2 * 2 * 4
    assert {row["judges"] for row in rows} == {judges}
    assert {row["guess"] for row in rows} == {0.75}
    shares = [row for row in table.where() if row["metric"] == "share"]
    assert {row["guess"] for row in shares} == {1 / 8}


def test_the_figure_says_where_it_cannot_judge(monkeypatch, tmp_path):
    found = []
    monkeypatch.setattr(figures, "save", lambda made, stem: found.append(made))
    table = STUDY.numbers(with_errors(synthetic_results(STUDY.cells("quick")), 0.74))
    STUDY.draw(table, tmp_path / "figure")
    panels = [[text.get_text() for text in axis.texts] for axis in found[0].axes]
    assert panels == [["cannot judge"] * 2, ["cannot judge"] * 2, []]


def test_without_undefended_cells_nothing_is_said_of_the_attack():
    cells = [c for c in STUDY.cells("quick") if c.settings["defense"] != "no-defense"]
    rows = STUDY.numbers(synthetic_results(cells)).where()
    assert {row["judges"] for row in rows if row["metric"] == "mse"} == {None}
