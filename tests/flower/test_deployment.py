"""The example app on a real federation: TLS, authenticated nodes, a process for each message."""

import json
import pickle
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, load_dataset
from gradveil.catalog import build_defense
from gradveil.federated import Client, Planner, Reply, Server, evaluate, partition
from gradveil.models import build_model

from .deployment import Federation, wait_until

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
HELD_OUT = 512
PUBLIC = 32
CACHED = "optimal-noise(scale=0.01, source=model-source(refresh_every=2))"
SERVED = "optimal-noise(scale=0.01, source='server')"
NODES = {"node0": (CACHED, 5), "node1": (SERVED, 6)}
"""The defenses of the nodes, and their seeds."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two nodes with seeds, to compute again what they send; the second plans from the server."""
    with Federation(tmp_path_factory.mktemp("federation")) as federation:
        for part, (name, (defense, seed)) in enumerate(NODES.items()):
            settings = f"partition-id={part} num-partitions=2 seed={seed}"
            federation.start_node(name, f"{settings} defense={json.dumps(defense)}")
        wait_until(lambda: federation.online() == 2, 180, "two SuperNodes")
        yield federation


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as it is, but with a ServerApp that also keeps every reply."""
    folder = tmp_path_factory.mktemp("app")
    for path in EXAMPLE.rglob("*.*"):
        if path.suffix in (".py", ".toml", ".md"):
            target = folder / path.relative_to(EXAMPLE)
            target.parent.mkdir(exist_ok=True)
            shutil.copy(path, target)
    shutil.copy(Path(__file__).with_name("capturing_server.py"), folder / "digits")
    settings = folder / "pyproject.toml"
    text = settings.read_text()
    assert "digits.server_app:app" in text
    settings.write_text(text.replace("digits.server_app:app", "digits.capturing_server:app"))
    return folder


def finished(federation: Federation, run: int, seconds: float) -> None:
    """Wait for the run's end, and require that it is a good one."""
    wait_until(lambda: federation.status(run).startswith("finished"), seconds, "the run")
    status = federation.status(run)
    assert status == "finished:completed", federation.flwr("log", str(run), "lab", "--show")


def replies(folder: Path, server_round: int) -> dict[int, dict[str, Any]]:
    """What arrived in a round, by node."""
    paths = folder.glob(f"{server_round}-*.pickle")
    return {int(path.stem.split("-")[1]): pickle.loads(path.read_bytes()) for path in paths}


def values_in(reply: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(v) for name, v in reply["arrays"]["arrays"].items()}


def node_id(federation: Federation, name: str) -> int:
    told = re.search(r"SuperNode ID: (\d+)", federation.log(name))
    assert told is not None
    return int(told.group(1))


def seeded_client(name: str) -> Client:
    """What a node is, computed here."""
    data = load_dataset("mnist")
    inputs, targets = data.inputs[:-HELD_OUT], data.targets[:-HELD_OUT]
    number, (defense, seed) = list(NODES).index(name), NODES[name]
    part = partition(targets, 2)[number]
    own = inputs[part], targets[part], build_defense(defense)
    return Client(number, *own, batch_size=16, seed=seed)


def windows(data: bytes) -> np.ndarray:
    """Every eight bytes in a row, wherever they start."""
    each = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), 8)
    return np.unique(each.copy().view(np.uint64))


def pairs(values: dict[str, torch.Tensor]) -> np.ndarray:
    """Two neighbouring entries as eight bytes; without pairs that have a zero."""
    found = []
    for value in values.values():
        flat = value.flatten().numpy()
        both = np.stack([flat[:-1], flat[1:]], axis=1)
        found.append(both[(both != 0).all(axis=1)].copy().view(np.uint64).ravel())
    return np.unique(np.concatenate(found))


def assert_nothing_else(reply: dict[str, Any]) -> None:
    """One ArrayRecord and one MetricRecord with one number: all that left the client."""
    assert reply["kinds"] == {"arrays": "ArrayRecord", "metrics": "MetricRecord"}
    assert reply["metrics"] == {"metrics": {"num-examples": 16}}
    model = build_model("simple-conv-net")
    assert set(reply["arrays"]["arrays"]) == {name for name, _ in model.named_parameters()}
    assert b"squared" not in reply["bytes"]
    assert b"gradveil" not in reply["bytes"]


def undefended(client: Client, model: nn.Module) -> dict[str, torch.Tensor]:
    """The plain gradient of the client's next batch."""
    chosen = client.next_indices()
    message = GradientMessage(model, cross_entropy, client.targets[chosen])
    return message.values(client.inputs[chosen])


def test_two_rounds(federation: Federation, app: Path) -> None:
    captured, results = federation.folder / "captured", federation.folder / "results.json"
    run = federation.run(app, num_rounds=2, public_examples=PUBLIC, results=str(results))
    finished(federation, run, 400)
    found = json.loads(results.read_text())

    model, clients = build_model("simple-conv-net"), {n: seeded_client(n) for n in NODES}
    server = Server(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    data = load_dataset("mnist")
    held_out = data.inputs[-HELD_OUT:], data.targets[-HELD_OUT:]
    public = held_out[0][:PUBLIC], held_out[1][:PUBLIC]
    planner = Planner(public, cross_entropy, batch_size=16)
    first = evaluate(model, cross_entropy, *held_out)
    assert found["initial"]["loss"] == pytest.approx(first.loss, abs=1e-6)
    for number, row in enumerate(found["rounds"], 1):
        sent = replies(captured, number)
        assert len(sent) == 2
        for reply in sent.values():
            assert_nothing_else(reply)
        shape = planner.plan(number, model).shape
        for node, client in clients.items():
            client.use(shape)
            reply = sent[node_id(federation, node)]
            plain = undefended(client, model)
            expected = client.reply(model, cross_entropy)
            for name, value in expected.values.items():
                arrived = torch.from_numpy(reply["arrays"]["arrays"][name])
                torch.testing.assert_close(arrived, value, rtol=0, atol=1e-6)
            everything = windows(reply["bytes"])
            assert not np.isin(pairs(plain), everything).any(), "an undefended value was sent"
            assert np.isin(pairs(values_in(reply)), everything).all(), "the search finds it"

        server.step((node, Reply(values_in(reply), 16)) for node, reply in sent.items())
        loss, accuracy = evaluate(model, cross_entropy, *held_out)
        assert row == {
            "round": number,
            "num-examples": 32,
            "replies": 2,
            "skipped": 0,
            "loss": pytest.approx(loss, abs=1e-6),
            "accuracy": accuracy,
        }
    assert len(found["rounds"]) == 2
    assert found["skipped"] == 0


def test_the_same_app_in_simulation_and_the_private_one(tmp_path: Path) -> None:
    apps = (EXAMPLE, EXAMPLE.with_name("flower_private"))
    results = [tmp_path / f"{app.name}.json" for app in apps]
    with Federation(tmp_path, simulation=True) as simulated:
        for app, path in zip(apps, results, strict=True):
            run = simulated.run(app, num_rounds=2, results=str(path))
            finished(simulated, run, 500)
    for path in results:
        rows = json.loads(path.read_text())["rounds"]
        assert [(row["replies"], row["skipped"]) for row in rows] == [(2, 0), (2, 0)]
    assert 0 < rows[0]["epsilon"] < rows[1]["epsilon"]


def test_unregistered_node_is_refused(federation: Federation) -> None:
    federation.start_node("stranger", "partition-id=1 num-partitions=2", register=False)
    process = federation.processes["stranger"]
    wait_until(lambda: process.poll() is not None, 180, "the refusal")
    assert process.returncode != 0
    assert "Exit Code: 305" in federation.log("stranger")
    assert federation.online() == 2


def test_client_that_dies_does_not_end_the_run(federation: Federation, app: Path) -> None:
    results = federation.folder / "after_death.json"
    asked = federation.log("node1").count("Receiving: train message")
    run = federation.run(app, num_rounds=2, round_timeout=150, results=str(results))
    wait_until(
        lambda: federation.log("node1").count("Receiving: train message") > asked,
        120,
        "a message to the node",
    )
    federation.kill("node1")
    finished(federation, run, 400)
    found = json.loads(results.read_text())
    assert [row["replies"] for row in found["rounds"]] == [1, 1]
    assert [row["num-examples"] for row in found["rounds"]] == [16, 16]
    assert found["rounds"][0]["skipped"] == 1
    assert found["rounds"][1]["loss"] != found["rounds"][0]["loss"]
