"""`gradveil audit` and `gradveil bound` on other tasks than classification."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from gradveil.audit import AuditResult
from gradveil.audit.measure import _bounds, _cells
from gradveil.cli import app

MODULE = """
import torch
from gradveil.models import TokenTransformer
from torch import nn
from torch.nn.functional import cross_entropy


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, inputs):
        return {"logits": self.net(inputs), "inputs": inputs}


def tagger():
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4))


def segmenter():
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 1))


def language_model():
    return TokenTransformer(30, 8, 16, 1, 2, causal=True)


def flattened(scores, labels):
    return cross_entropy(scores.flatten(0, 1), labels.flatten(0, 1))
"""
QUICK = ["--batch-size", "2", "--quick", "--jobs", "1", "--defense", "no-defense"]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with a module of models and data of every task, and audits without bounds."""
    nothing = (None, "not measured in this test")
    for module in (_cells, _bounds):
        monkeypatch.setattr(module, "guarantee_of", lambda *_, **__: nothing)
    monkeypatch.setattr(_cells, "told_apart", lambda *_, **__: (None, []))
    (tmp_path / "own_tasks.py").write_text(MODULE)
    numbers = np.random.default_rng(0)
    rows = numbers.normal(size=(8, 5)).astype(np.float32)
    encoded = np.concatenate([rows[:, :3], np.eye(2)[numbers.integers(2, size=8)]], 1)
    images = numbers.random((8, 1, 5, 5))
    arrays = {
        "regression": {"inputs": rows, "targets": rows[:, 0]},
        "yes-or-no": {"inputs": rows, "targets": rows[:, :2] > 0},
        "maps": {"inputs": images, "targets": (images[:, 0] > 0.5).astype(int)},
        "tags": {
            "inputs": rows[:, :3, None] * np.ones(3),
            "targets": numbers.integers(4, size=(8, 3)),
        },
        "text": {"tokens": numbers.integers(30, size=(8, 5))},
        "table": {"x": encoded, "y": np.arange(8) % 2, "columns": [0, 1, 2, 3, 3]},
    }
    for name, each in arrays.items():
        np.savez(tmp_path / f"{name}.npz", **each)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def invoke(*arguments: str):
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, arguments)


@pytest.mark.parametrize(
    ("data", "options", "task"),
    [
        ("regression", ["--loss", "mse"], "numbers"),
        ("yes-or-no", ["--loss", "bce"], "numbers"),
        (
            "yes-or-no",
            ["--loss", "bce", "--model", "own_tasks:Pair", "--output", "logits"],
            "numbers",
        ),
        ("yes-or-no", ["--loss", "bce", "--model", "own_tasks:Pair", "--output", "0"], "numbers"),
        ("maps", ["--model", "own_tasks:segmenter"], "labels"),
        ("tags", ["--model", "own_tasks:tagger"], "labels"),
        ("tags", ["--model", "own_tasks:tagger", "--loss", "own_tasks:flattened"], "labels"),
        ("text", ["--model", "own_tasks:language_model"], "labels"),
        ("table", ["--attack", "tab-leak(steps=3, starts=2)"], "classification"),
        ("text", ["--model", "own_tasks:language_model", "--attack", "token-rows"], "labels"),
    ],
)
def test_every_task(workplace, data, options, task):
    steps = [] if data == "text" else ["--steps", "3"]
    done = invoke("audit", "--data", f"{data}.npz", *options, *QUICK, *steps, "--out", "result")
    assert done.exit_code == 0, (done.output, done.exception)
    result = AuditResult.from_json((workplace / "result" / "results.json").read_text())
    assert result.setup.task == task
    assert result.notes == ()
    attack, *_ = result.defenses[0].attacks
    shown = {"text": "Tokens", "table": "Columns"}.get(data)
    assert (attack.accuracy is not None) is (shown is not None)
    page = (workplace / "result" / "report.html").read_text()
    assert shown is None or f"{shown} found" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--data regression.npz", "Option `--loss` should be given where targets are numbers"),
        ("--data regression.npz --loss mes", "Did you mean `mse`"),
        ("--data regression.npz --loss own_tasks:missing", "Option `--loss`"),
        ("--data maps.npz --loss mse --model own_tasks:segmenter", "Option `--loss` should take"),
        ("--data text.npz", "Option `--model` should name your model of tokens"),
        ("--data yes-or-no.npz --loss bce --model own_tasks:Pair", "`--output logits`"),
        (
            "--data yes-or-no.npz --loss bce --model own_tasks:Pair --output scores",
            "Option `--output` should name an output of the model. Found 'scores'",
        ),
        ("--data regression.npz --loss mse --labels counts", "Option `--labels`"),
    ],
)
def test_mistakes_name_the_option(workplace, arguments, message):
    done = invoke("audit", *arguments.split(), *QUICK)
    assert done.exception is not None
    assert message in str(done.exception)


def test_bound_takes_a_loss_and_an_output(workplace):
    done = invoke(
        "bound", "--data", "yes-or-no.npz", "--loss", "bce", "--model", "own_tasks:Pair",
        "--output", "logits", "--defense", "gradient-noise(scale=0.1)", "--batch-size", "2",
        "--format", "json",
    )  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)
    assert json.loads(done.stdout)
