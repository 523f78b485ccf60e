"""Flower gives the local engine's numbers, batches and noise included."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from gradveil.federated import (
    Planner,
    RoundMetrics,
    TrainingConfig,
    build_planner,
    build_run,
    load_split,
    train,
)
from gradveil.flower import run_simulation_of
from gradveil.flower._simulation import SimulatedServer, client_app_of

from .small import LocalGrid

NOISE = TrainingConfig(
    defense="optimal-noise(scale=0.01)",
    clients=3,
    rounds=5,
    limit=100,
    held_out=32,
    evaluate_every=2,
    batch_size=8,
)
CONFIGS = {
    "noise": NOISE,
    "cached": replace(
        NOISE, defense="optimal-noise(scale=0.01, source=model-source(refresh_every=2))"
    ),
    "fedavg": replace(
        NOISE, defense="gradient-noise(0.001)", local_steps=2, optimizer="sgd", lr=1.0
    ),
    "sampled": replace(NOISE, fraction=0.5, partition="dirichlet", optimizer="sgd", lr=0.1),
    "pruned": replace(NOISE, defense="optimal-pruning(ratio=0.8)"),
    "private": replace(NOISE, defense="private-noise(2.0, clip=1.0)", partition="dirichlet"),
    "private, with a budget": replace(
        NOISE, defense="private-noise(1.0, clip=1.0, unit='client')", target_epsilon=10.0
    ),
    "private fedavg": replace(
        NOISE, defense="private-noise(2.0, clip=1.0, unit='client')", local_steps=2, lr=1.0
    ),
    "server-planned": replace(NOISE, defense="optimal-noise(scale=0.01, source='server')"),
    "server-planned fedavg": replace(
        NOISE,
        defense="optimal-noise(0.01, source='server')",
        local_steps=2,
        optimizer="sgd",
        lr=1.0,
    ),
}


def planner(config: TrainingConfig) -> Planner | None:
    """Where the server plans: every second round, from the first examples of the data."""
    if "source=" not in config.defense:
        return None
    data = load_split(config)
    return build_planner(config, (data.inputs[:16], data.targets[:16]), refresh_every=2)


OWN = {"loss", "utility_first", "utility_second", "seconds_gradient", "seconds_defense"}


def without_own(row: RoundMetrics) -> RoundMetrics:
    """A round without what only clients see."""
    return replace(row, **dict.fromkeys(OWN))


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest, tmp_path: Path) -> TrainingConfig:
    """On small images and a small model."""
    random = np.random.default_rng(0)
    images, labels = random.random((160, 1, 6, 6), np.float32), random.integers(0, 3, 160)
    np.savez(tmp_path / "images.npz", inputs=images, targets=labels)
    small = {"data": str(tmp_path / "images.npz"), "model": "mlp(sizes=[36, 8, 3])"}
    return replace(CONFIGS[request.param], **small)


def test_every_message_in_a_new_process_gives_the_local_engine(config):
    """All of the Flower engine but ray: each context comes to each message out of bytes."""
    nodes = {
        100 - i: Context(1, 100 - i, {"partition-id": i}, RecordDict(), {})
        for i in range(config.clients)
    }
    rows: list[RoundMetrics] = []
    flower = SimulatedServer(config, load_split(config), rows.append, planner=planner(config))
    local = build_run(config, planner=planner(config))
    flower.start(grid=LocalGrid(client_app_of(config), nodes), num_rounds=config.rounds)
    history = local.run(config.rounds)
    for name, value in local.server.model.state_dict().items():
        assert torch.equal(flower.model.state_dict()[name], value), name
    assert rows == flower.history == [without_own(row) for row in history.rounds]
    assert flower.privacy == history.privacy


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # ray leaves files open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["noise", "cached", "fedavg", "server-planned"])
def test_simulation_equals_the_local_engine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")  # Flower changes it: this brings it back
    monkeypatch.setenv("RAY_worker_niceness", "0")
    rows: list[RoundMetrics] = []
    config = CONFIGS[name]
    history = run_simulation_of(
        config, out=tmp_path / "flower", on_round=rows.append, planner=planner(config)
    )
    expected = train(config, out=tmp_path / "local", planner=planner(config))
    found, right = (torch.load(tmp_path / e / "model.pt") for e in ("flower", "local"))
    assert found.keys() == right.keys()
    for key, value in right.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-6)
    assert history.engine == "flower"
    assert list(history.rounds) == rows
    assert [row.clients for row in rows] == [row.clients for row in expected.rounds]
    assert rows[-1].accuracy == expected.rounds[-1].accuracy
    assert (tmp_path / "flower" / "history.json").read_text() == history.to_json()
