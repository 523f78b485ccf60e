"""Bounds beside attacks: which of them there are, at which noise, and what the claim measures."""

import pytest

from paper import figures
from paper.measures import attack_above_bound
from paper.reproduce import STUDIES
from paper.studies_beyond import CANDIDATES, FLOOR
from tests.paper.synthetic import synthetic_results

STUDY = STUDIES["bound-against-attacks"]


def changed(results, error):
    """All bounds from candidates are this."""
    return {
        cell: {**result, "error": error} if cell.name == "candidate_bound" else result
        for cell, result in results.items()
    }


def test_candidates_are_there_for_all_that_is_attacked_and_for_more_noise():
    cells = STUDY.cells("standard")
    by_kind = {
        kind: {(c.settings["defense"], c.settings["start"]) for c in cells if c.name == kind}
        for kind in ("attack", "bound", "candidate_bound")
    }
    assert by_kind["attack"] == by_kind["bound"] < by_kind["candidate_bound"]
    assert any("scale=3.0" in defense for defense, _ in by_kind["candidate_bound"])


@pytest.mark.parametrize("preset", ["quick", "standard", "paper"])
def test_bounds_stand_beside_attacks_on_single_images(preset):
    """They are place by place, which errors after matching undercut in batches of several."""
    assert {c.settings["size"] for c in STUDY.cells(preset)} == {1}


def test_candidates_are_neither_attacked_nor_planned_from():
    for preset in ("quick", "standard", "paper"):
        for cell in STUDY.cells(preset):
            if cell.name != "candidate_bound":
                continue
            first = cell.settings["population"]["start"]
            public = cell.settings.get("public")
            assert cell.settings["start"] < first
            assert not public or public["start"] + public["size"] * public["batches"] <= first


def test_errors_of_0_are_drawn_at_the_floor(monkeypatch, tmp_path):
    found = []
    monkeypatch.setattr(figures, "save", lambda made, stem: found.append(made))
    table = STUDY.numbers(changed(synthetic_results(STUDY.cells("quick")), 0.0))
    assert {row["mean"] for row in table.where() if row["what"] == CANDIDATES} == {0.0}
    STUDY.draw(table, tmp_path / "figure")
    for axis in found[0].axes:
        assert 0 < axis.get_ylim()[0] <= FLOOR


@pytest.mark.parametrize(("error", "above"), [(0.01, True), (9.0, False)])
def test_attacks_are_measured_against_the_candidates(error, above):
    results = changed(synthetic_results(STUDY.cells("quick")), error)
    measure = attack_above_bound(STUDY.name, "candidate_bound", "error")
    units = measure({STUDY.name: results})
    assert len(units) == 4
    assert all((float(values.mean()) > 0) == above for values in units.values())
