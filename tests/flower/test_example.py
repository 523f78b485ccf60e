"""The example apps, called as Flower's runtimes call them, in this process."""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tomli
from flwr.app import Context, RecordDict

from gradveil.privacy import epsilon_on_grid

from .small import LocalGrid

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def app(request: pytest.FixtureRequest) -> str:
    """The folder of the app; a test may choose another."""
    return str(getattr(request, "param", "flower"))


@pytest.fixture
def settings(app: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The app's table in pyproject.toml, with its modules importable."""
    folder = EXAMPLES / app
    monkeypatch.syspath_prepend(str(folder))
    yield tomli.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    for name in [name for name in sys.modules if name.partition(".")[0].endswith("digits")]:
        del sys.modules[name]


def load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def played(settings: dict[str, Any], folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The results of a run with two nodes."""
    results = folder / "results.json"
    run = {**settings["config"], "results": str(results), **options}
    nodes = {
        node: Context(1, node, {"partition-id": i, "num-partitions": 2}, RecordDict(), run)
        for i, node in enumerate((8, 9))
    }
    client, server = (load(settings["components"][kind]) for kind in ("clientapp", "serverapp"))
    server(LocalGrid(client, nodes), Context(1, 1, {}, RecordDict(), run))
    found: dict[str, Any] = json.loads(results.read_text())
    return found


@pytest.mark.parametrize(
    "options",
    [{}, {"defense": "optimal-noise(scale=0.02, source='server')", "public-examples": 32}],
    ids=["as it is", "the server plans"],
)
def test_two_rounds(settings: dict[str, Any], tmp_path: Path, options: dict[str, Any]) -> None:
    found = played(settings, tmp_path, {"num-rounds": 2, **options})
    assert [(r["round"], r["replies"], r["num-examples"]) for r in found["rounds"]] == [
        (1, 2, 32),
        (2, 2, 32),
    ]
    assert found["skipped"] == 0
    assert found["rounds"][1]["loss"] != found["initial"]["loss"]


@pytest.mark.parametrize("app", ["flower_private"], indirect=True)
def test_a_private_run_tells_epsilon_and_ends_before_its_budget(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = import_module("private_digits.task")
    z, rate, delta = task.NOISE_MULTIPLIER, task.SAMPLE_RATE, task.DELTA
    spent = [epsilon_on_grid(z, rate, rounds, delta) for rounds in (1, 2, 3)]
    monkeypatch.setattr(task, "EPSILON", (spent[1] + spent[2]) / 2)
    found = played(settings, tmp_path, {"num-rounds": 5})
    assert [row["epsilon"] for row in found["rounds"]] == spent[:2]
    told = 2 * task.BATCH  # whatever was drawn
    assert {row["num-examples"] for row in found["rounds"]} == {told}
    assert (found["privacy"]["unit"], found["privacy"]["sample_rate"]) == ("example", rate)
    assert (found["privacy"]["neighbours"], found["privacy"]["simulation"]) == ("add-remove", False)
    assert found["stopped"].startswith("After 2 rounds ε is")
    assert [row["skipped"] for row in found["rounds"]] == [0, 0]


@pytest.mark.parametrize("app", ["flower_private"], indirect=True)
def test_the_private_app_as_it_is_stays_within_its_budget(settings: dict[str, Any]) -> None:
    account = import_module("private_digits.task").load_account()
    rounds = settings["config"]["num-rounds"]
    assert account.budget / 2 < account.epsilon(rounds) <= account.budget


@pytest.mark.parametrize(
    "asked",
    [
        "no-defense",
        "optimal-noise(scale=0.001)",
        "private-noise(1.0, 1.0, grid=False)",
        "os:system(command='touch {0}')",
    ],
)
def test_a_run_cannot_choose_less_noise_or_run_code(
    settings: dict[str, Any], tmp_path: Path, asked: str
) -> None:
    load_defense = load("digits.task:load_defense")
    run = {"defense": asked.format(tmp_path / "x")}
    with pytest.raises(ValueError, match="within this client's limits"):
        load_defense(Context(1, 8, {}, RecordDict(), run))
    assert not (tmp_path / "x").exists()
    more = Context(1, 8, {}, RecordDict(), {"defense": "optimal-noise(scale=0.5)"})
    assert load_defense(more).scale == 0.5
    own = Context(1, 8, {"defense": "gradient-noise(0.2)"}, RecordDict(), run)
    assert load_defense(own).scale == 0.2
