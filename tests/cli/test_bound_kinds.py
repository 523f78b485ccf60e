"""`gradveil bound --kind`: recognition, Rényi and Fisher statements, with their assumptions."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import gradveil
from gradveil._random import numbered_stream
from gradveil.cli import app
from gradveil.models import build_fitting_model
from gradveil.privacy import recognition_bound, renyi_bound

RELEASES = ("--noise-multiplier", "4", "--steps", "16")


def bound(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["bound", "--kind", *arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def facts(*arguments: str) -> dict[str, Any]:
    return json.loads(bound(*arguments, "--format", "json"))


def test_recognition():
    found = facts("recognition", "--guess", "0.1", *RELEASES)
    assert found["probability"] == recognition_bound(0.1, 4.0, 1.0, 16)
    assert round(found["probability"], 3) == 0.389
    assert (found["guess"], found["sample_rate"], found["steps"]) == (0.1, 1.0, 16)
    assert found["sampling"] == "none: every example in every step"
    assert found["assumptions"].startswith("Any attacker and any data")


def test_recognition_of_sampled_releases():
    options = ("--guess", "0.1", "--sample-rate", "0.1", "--noise-multiplier", "1", "--steps", "50")
    found = facts("recognition", *options)
    assert round(found["probability"], 3) == 0.341
    assert found["sampling"].startswith("Poisson: each example with probability 0.1")


def test_renyi():
    found = facts("renyi", "--diameter", "2", *RELEASES)
    assert found["mse"] == renyi_bound(2.0, 4.0, 1.0, 16)
    assert "unbiased" in found["assumptions"]


def test_a_table_says_what_is_assumed():
    shown = " ".join(bound("recognition", "--guess", "0.1", *RELEASES).split())
    assert "No attacker succeeds with a probability above 0.389" in shown
    assert "noise multiplier 4.0" in shown
    assert "Assumed: Any attacker and any data" in shown


@pytest.fixture
def table(tmp_path, monkeypatch) -> tuple[torch.Tensor, torch.Tensor]:
    """30 rows of 5 numbers, normalised as the command line does."""
    rows = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    np.savez(tmp_path / "table.npz", x=rows, y=np.arange(30) % 3)
    monkeypatch.chdir(tmp_path)
    return torch.from_numpy(rows), torch.arange(30) % 3


def test_fisher_is_entries_over_the_trace(table):
    """Isotropic noise of another scale; the trace from exact derivatives of all batches."""
    options = ("--data", "table.npz", "--model", "mlp", "--batch-size", "2")
    found = facts("fisher", *options, "--defense", "gradient-noise(0.5)")
    data = gradveil.load_dataset("table.npz")
    model = build_fitting_model("mlp", data.inputs.shape[1:], data.num_classes, 0)
    traces = []
    order = 2 + torch.randperm(28, generator=numbered_stream(0))  # of the public rows
    for rows in order[: 2 * found["batches"]].view(-1, 2):
        inputs, targets = data.inputs[rows], data.targets[rows]
        message = gradveil.GradientMessage(model, torch.nn.functional.cross_entropy, targets)
        moments = gradveil.measure(message, inputs, gradveil.sensitivity.Exact())
        traces.append(gradveil.theory.fisher_trace(moments, gradveil.mechanisms.Mechanism(std=0.5)))
    assert found["mse"] == pytest.approx(10 / np.mean(traces), rel=1e-3)
    weaker = facts("fisher", *options, "--defense", "gradient-noise(0.25)")
    assert weaker["mse"] == pytest.approx(found["mse"] / 4, rel=1e-4)


def test_fisher_without_noise_promises_nothing(table):
    options = ("fisher", "--data", "table.npz", "--model", "mlp", "--batch-size", "2")
    assert facts(*options, "--defense", "no-defense")["mse"] == 0
    assert "No guarantee (0" in bound(*options, "--defense", "no-defense")


CANDIDATES = ("candidates", "--data", "table.npz", "--model", "mlp", "--batch-size", "2")


def test_candidates(table):
    """A trend up to the asked number; much noise leaves the error without a message."""
    options = (*CANDIDATES, "--candidates", "9", "--trials", "8")
    found = facts(*options, "--defense", "gradient-noise(1000)")
    assert [point["candidates"] for point in found["trend"]] == [8, 9]
    assert found["mse"] == pytest.approx(found["blind_mse"], rel=1e-3)
    assert found["mse_low"] <= found["mse"] <= found["mse_high"]
    assert (found["kind"], found["trials"]) == ("candidates", 8)
    assert (found["candidates"], found["defense"]) == (9, "gradient-noise(scale=1000)")
    assert "independent examples of the population" in found["assumptions"]
    assert "and the rest of the batch" in found["assumptions"]
    bare = facts(*options, "--defense", "no-defense")
    assert (bare["mse"], bare["recognition"]) == (pytest.approx(0, abs=1e-9), 1)


def test_a_table_of_candidates(table):
    shown = " ".join(
        bound(*CANDIDATES, "--trials", "2", "--defense", "gradient-noise(0.1)").split()
    )
    assert "No attacker's mean squared error per entry is below" in shown
    assert "Assumed: Any attacker, on real data" in shown
    private = bound(
        *CANDIDATES, "--trials", "2", "--defense", "optimal-noise(0.1, source='private')"
    )
    assert "No guarantee (" in private


def test_candidates_that_are_too_many(table):
    done = CliRunner().invoke(app, ["bound", "--kind", *CANDIDATES, "--candidates", "90"])
    assert done.exit_code != 0
    done = CliRunner().invoke(app, ["bound", "--kind", "fisher", "--candidates", "9"])
    assert "Option `--candidates` should be left out with `--kind fisher`" in str(done.exception)
