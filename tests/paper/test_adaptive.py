"""The attacker who knows the defense, on photos: one model for attacks and losses, one range."""

import pytest

from paper import figures
from paper.claims import AWARE, CLAIMS, PAPER, find
from paper.measures import NOT_TESTED, REPRODUCED
from paper.reproduce import STUDIES
from paper.study import PRESETS, Table
from tests.paper.synthetic import synthetic_store

FAMILIES = ("pruning", "noise")


def study_of(family: str):
    return STUDIES[f"cifar-adaptive-{family}"]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    "names",
    [
        *((f"cifar-adaptive-{family}",) for family in FAMILIES),
        *((f"cifar-{family}-tradeoff",) for family in FAMILIES),
        *((f"adaptive-{family}", f"mnist-{family}-tradeoff") for family in FAMILIES),
        ("frontier",),
        ("cifar-frontier",),
    ],
    ids=lambda names: names[0],
)
def test_errors_are_compared_at_losses_of_the_model_that_was_attacked(preset, names):
    cells = [cell for name in names for cell in STUDIES[name].cells(preset)]
    models = {
        kind: {cell.settings["model"] for cell in cells if cell.name.endswith(kind)}
        for kind in ("attack", "training")
    }
    assert len(models["attack"]) == 1
    assert models["attack"] == models["training"]


def test_the_aware_attacker_has_the_width_at_which_he_rebuilds_photos():
    for family in FAMILIES:
        models = {cell.settings["model"] for cell in study_of(family).cells("standard")}
        assert models == {"conv-net(width=16)"}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_losses_are_those_of_the_study_itself(family):
    """The trade-off of the paper's attack, which may be on another model, has no part in it."""
    name, claim = study_of(family).name, f"cifar-{family}-tradeoff"
    store = dict(synthetic_store("standard", effect=0.1))
    of_aware = judged(store, claim, AWARE)
    assert of_aware.verdict == REPRODUCED
    del store[claim]
    assert judged(store, claim, PAPER).verdict == NOT_TESTED
    assert judged(store, claim, AWARE) == of_aware
    store[name] = {c: r for c, r in store[name].items() if c.name == "attack"}
    assert judged(store, claim, AWARE).verdict == NOT_TESTED


def judged(store, name, variant):
    claims = [claim for claim in CLAIMS if claim.name == name]
    [own] = [found for found in find(store, claims) if found.variant == variant]
    return own.judgement


def test_pruning_and_noise_on_the_same_photos_have_one_range(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(figures, "save", lambda made, stem: drawn.append(made))
    for family, name, error in (
        ("pruning", "gradient-pruning", 0.7),
        ("noise", "clamped-noise", 1.2),
    ):
        study_of(family).draw(photo_table(name, error), tmp_path / family)
    first, second = (made.axes[0].get_ylim() for made in drawn)
    assert first == second


def photo_table(name: str, error: float) -> Table:
    columns = {"attacker": str, "defense": str, "level": float, "metric": str}
    numbers = {"mean": float, "low": float, "high": float, "n": int}
    rows = [
        ("aware", name, 0.5, metric, mean, mean - 0.1, mean + 0.1, 16)
        for metric, mean in (("mse", error), ("blank_mse", 1.0))
    ]
    return Table({**columns, **numbers}, rows)
