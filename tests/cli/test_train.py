"""`gradveil train` as a user runs it."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gradveil.cli import app
from gradveil.data import Dataset, load_dataset
from tests.federated.small import image_file

SMALL = [
    "train",
    *("--model", "tests.federated.small:flat_mlp"),
    *("--limit", "96", "--held-out", "32", "--batch-size", "8", "--evaluate-every", "2"),
]


@pytest.fixture(scope="module", autouse=True)
def images(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A file that loads faster than the embedded images."""
    SMALL.extend(["--data", image_file(tmp_path_factory.mktemp("data"))])


def run(*options: str) -> str:
    done = CliRunner().invoke(app, [*SMALL, *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_one_epoch_as_json() -> None:
    history = json.loads(run("--defense", "optimal-noise(scale=0.01)", "--format", "json"))
    assert [row["round"] for row in history["rounds"]] == [1, 2, 3]
    assert history["rounds"][-1]["accuracy"] is not None
    assert history["config"]["defense"] == "optimal-noise(scale=0.01)"


def test_the_model_fits_the_data(tmp_path: Path) -> None:
    table = tmp_path / "tab.npz"
    np.savez(table, x=np.arange(360, dtype=np.float32).reshape(60, 6) % 7, y=np.arange(60) % 3)
    for data, name in ((str(table), "mlp"), ("cifar10", "conv-net")):
        options = ["--data", data, "--rounds", "1", "--format", "json"]
        done = CliRunner().invoke(app, ["train", *options])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["config"]["model"] == name


def test_a_model_that_does_not_fit_is_no_traceback() -> None:
    options = ["--data", "cifar10", "--model", "simple-conv-net", "--rounds", "1"]
    done = CliRunner().invoke(app, ["train", *options])
    assert isinstance(done.exception, ValueError)  # which `main` shows as one line
    assert "Option `--model` should accept inputs of shape (2, 3, 32, 32)" in str(done.exception)


def test_the_data_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def load(source: str) -> Dataset:
        loaded.append(source)
        return load_dataset(source)

    monkeypatch.setattr("gradveil.federated._config.load_dataset", load)
    run("--epochs", "0.5")
    assert len(loaded) == 1


def test_files_and_resume(tmp_path: Path) -> None:
    text = run("--rounds", "3", "--out", str(tmp_path / "a"))
    assert "accuracy" in text
    assert {path.name for path in (tmp_path / "a").iterdir()} >= {
        "checkpoint",
        "curves.png",
        "history.json",
        "model.pt",
        "rounds.csv",
    }
    assert (tmp_path / "a" / "curves.png").read_bytes().startswith(b"\x89PNG")
    run("--rounds", "6", "--out", str(tmp_path / "b"))
    run("--rounds", "6", "--out", str(tmp_path / "a"), "--resume")
    models = [torch.load(tmp_path / x / "model.pt", weights_only=True) for x in "ab"]
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())
    rows = list(csv.DictReader((tmp_path / "a" / "rounds.csv").read_text().splitlines()))
    assert [row["round"] for row in rows] == list("123456")


def test_fedavg() -> None:
    options = ("--local-steps", "3", "--local-lr", "0.05", "--rounds", "10", "--format", "json")
    history = json.loads(run(*options, "--partition", "dirichlet", "--fraction", "0.5"))
    assert (history["config"]["optimizer"], history["config"]["lr"]) == ("sgd", 1.0)
    assert all(len(row["clients"]) == 2 for row in history["rounds"])
    assert history["rounds"][-1]["held_out_loss"] < history["rounds"][1]["held_out_loss"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--defense", "optimal-nose(0.1)"), "Did you mean `optimal-noise`"),
        (
            ("--rounds", "2", "--epochs", "1"),
            "`--rounds` and `--epochs` should not be given together",
        ),
        (("--fraction", "2", "--rounds", "1"), "`--fraction = 2.0`"),
    ],
)
def test_a_mistake_is_a_clear_error(options: tuple[str, ...], found: str) -> None:
    done = CliRunner().invoke(app, [*SMALL, *options])
    assert isinstance(done.exception, ValueError)
    assert found in str(done.exception)


def test_a_folder_in_use_is_not_overwritten(tmp_path: Path) -> None:
    run("--rounds", "1", "--out", str(tmp_path))
    before = (tmp_path / "history.json").read_bytes()
    done = CliRunner().invoke(app, [*SMALL, "--rounds", "1", "--out", str(tmp_path)])
    assert isinstance(done.exception, FileExistsError)
    assert "--resume" in str(done.exception)
    assert (tmp_path / "history.json").read_bytes() == before
