"""Private training: the ways share what they should, differences are paired by seed."""

import pytest

from paper.reproduce import STUDIES
from paper.studies_beyond import PRIVATE_TRAINING

STUDY = STUDIES["private-training"]


def result(cell):
    """Shaped noise is better by 0.1 in each seed, and seeds differ by more than that."""
    settings = cell.settings
    loss = 1.0 + settings["seed"] - 0.1 * (settings["way"] == "shaped")
    plain = settings["way"] == "plain"
    return {
        "loss": loss,
        "accuracy": 0.5,
        "noise_multiplier": None if plain else 1.0,
        "epsilon_opacus": 3.0 if settings["way"] == "opacus" else None,
    }


@pytest.mark.parametrize("preset", PRIVATE_TRAINING)
def test_ways_differ_in_nothing_else(preset):
    kept = [
        {n: v for n, v in cell.settings.items() if n not in ("way", "epsilon", "seed")}
        for cell in STUDY.cells(preset)
    ]
    assert all(each == kept[0] for each in kept)
    for cell in STUDY.cells(preset):
        assert (cell.settings["epsilon"] is None) == (cell.settings["way"] == "plain")


@pytest.mark.parametrize("preset", PRIVATE_TRAINING)
def test_private_public_and_held_out_examples_do_not_overlap(preset):
    settings = STUDY.cells(preset)[0].settings
    public = settings["public"]
    assert settings["examples"] <= public["start"]
    assert public["start"] + public["count"] <= settings["held_out_start"]
    total = 10_000 if settings["data"] == "mnist-test" else 5_000
    assert settings["held_out_start"] + settings["held_out"] <= total


def test_differences_are_paired_by_seed():
    cells = STUDY.cells("standard")
    rows = STUDY.numbers({cell: result(cell) for cell in cells}).where()
    found = {(r["way"], r["level"]): r for r in rows if r["metric"] == "difference"}
    assert set(found) == {(way, e) for way in ("shaped", "opacus") for e in (1.0, 3.0, 8.0)}
    shaped = found["shaped", 3.0]
    assert shaped["mean"] == pytest.approx(-0.1)
    assert shaped["low"] == pytest.approx(-0.1)
    assert shaped["n"] == 6
    [loss] = [r for r in rows if (r["way"], r["metric"]) == ("plain", "loss")]
    assert loss["high"] - loss["low"] > 1.0
