"""`gradveil bound`."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gradveil.audit.measure._bounds import PLACE_BY_PLACE
from gradveil.cli import app
from gradveil.denoising import LearnedPriors


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    numbers = np.random.default_rng(0)
    rows = numbers.normal(size=(30, 5)).astype(np.float32)
    np.savez(tmp_path / "table.npz", x=rows, y=np.arange(30) % 3)
    monkeypatch.chdir(tmp_path)


def bound(*arguments: str) -> str:
    done = CliRunner().invoke(
        app, ["bound", "--data", "table.npz", "--batch-size", "2", *arguments]
    )
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def test_optimal_noise_gains_over_isotropic_noise():
    (optimal,) = json.loads(bound("--format", "json"))
    (isotropic,) = json.loads(bound("--defense", "gradient-noise", "--format", "json"))
    assert optimal["gain_over_isotropic"] > 1
    assert isotropic["gain_over_isotropic"] == pytest.approx(1)
    assert optimal["bound"]["prior"] == "Gaussian within classes fitted to 28 other examples"
    low, high = optimal["bound"]["mse_interval"]
    assert low < optimal["bound"]["mse"] < high
    assert optimal["bound"]["mse"] >= optimal["bound"]["trace_mse"] > 0


def test_a_flat_prior_has_the_mark_and_the_reason(monkeypatch):
    """Above 4,096 entries none was fitted, and the number stood there without a mark."""
    monkeypatch.setattr("gradveil.audit._subject.PRIOR_LIMIT", 4)
    noise = ("--model", "mlp", "--defense", "gradient-noise(100)")
    (point,) = json.loads(bound(*noise, "--format", "json"))
    assert point["bound"]["prior"] == "flat"
    assert point["bound"]["mse"] > 10  # guessing the mean has about 1
    assert "flat prior" in point["bound"]["reason"]
    assert point["no_guarantee"] == point["bound"]["reason"]
    shown = " ".join(bound(*noise).split())
    assert " †" in shown
    assert "No guarantee here: " in shown


@pytest.mark.parametrize("size", ["1", "4"])
def test_it_is_for_errors_after_matching_as_attacks_are_scored(size: str):
    """The truth chooses among 4! orders, which takes something off; of one there is no choice."""
    shown = bound("--model", "mlp", "--batch-size", size, "--format", "json")
    found = json.loads(shown)[0]["bound"]
    assert 0 < found["mse"] <= found["unmatched_mse"]
    assert (found["mse"] == pytest.approx(found["unmatched_mse"])) == (size == "1")


def test_pruning_without_noise_has_no_guarantee():
    shown = bound("--defense", "gradient-pruning")
    assert "no guarantee" in shown
    assert "Formal privacy: none" in " ".join(shown.split())
    assert "No guarantee here: " in " ".join(shown.split())


def test_the_defenses_own_estimator_measures():
    """It was ignored."""
    spec = 'optimal-noise(scale=0.1, estimator="exact")'
    points = [json.loads(bound("--defense", spec, "--format", "json"))[0] for _ in range(2)]
    (other,) = json.loads(bound("--defense", "optimal-noise(scale=0.1)", "--format", "json"))
    assert points[0] == points[1]
    assert points[0]["gain_over_isotropic"] != other["gain_over_isotropic"]
    assert points[0]["bound"]["batches"] == 8


def test_a_sweep_draws_a_rising_curve():
    points = json.loads(bound("--sweep", "--out", "curve", "--format", "json"))
    assert len(points) == 7
    errors = [point["bound"]["mse"] for point in points]
    assert errors == sorted(errors)
    assert Path("curve/bound.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(Path("curve/bound.json").read_text()) == points


@pytest.mark.slow
def test_a_sweep_over_ratios():
    spec = "optimal-pruning(noise=gradient-noise(0.1))"
    points = json.loads(bound("--sweep", "--defense", spec, "--format", "json"))
    assert [point["amount"] for point in points] == [0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99]
    utilities = [point["utility_first"] for point in points]
    assert utilities == sorted(utilities, reverse=True)


def test_nothing_to_sweep_is_an_error():
    done = CliRunner().invoke(
        app, ["bound", "--data", "table.npz", "--defense", "no-defense", "--sweep"]
    )
    assert "Option `--sweep`" in str(done.exception)
    assert "has a scale or a ratio" in str(done.exception)
    assert "`--defense no-defense`" in str(done.exception)


@pytest.mark.slow
def test_a_learned_prior_says_what_it_is(monkeypatch):
    few = {**LearnedPriors.fit.__func__.__kwdefaults__, "steps": 5}
    monkeypatch.setattr(LearnedPriors.fit.__func__, "__kwdefaults__", few)
    defense = ("--defense", "gradient-noise(scale=0.1)")
    (learned,) = json.loads(bound(*defense, "--prior", "learned", "--format", "json"))
    assert "learned within classes" in learned["bound"]["prior"]
    assert "errs upwards" in learned["bound"]["prior"]
    assert learned["bound"]["mse"] > 0
    assert PLACE_BY_PLACE in learned["bound"]["reason"]  # no bound after matching is known
    assert "errs upwards" in " ".join(bound(*defense, "--prior", "learned").split())
    assert "Gaussian" in bound(*defense, "--prior", "gaussian")


def test_a_prior_is_refused_where_it_has_no_meaning():
    done = CliRunner().invoke(app, ["bound", "--kind", "renyi", "--prior", "learned"])
    assert done.exit_code != 0
