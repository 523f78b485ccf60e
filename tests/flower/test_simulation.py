"""Flower gives the local engine's numbers, batches and noise included."""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from gradveil.catalog import build_defense
from gradveil.federated import (
    FederatedRun,
    Planner,
    TrainingConfig,
    build_run,
    load_split,
    partition,
)
from gradveil.flower import FedAvgUpdates, FedSGD, train_function

from .small import App, LocalGrid

NOISE = TrainingConfig(
    defense="optimal-noise(scale=0.01)", clients=3, rounds=5, limit=100, held_out=32, batch_size=8
)
CONFIGS = {
    "noise": NOISE,
    "cached": replace(
        NOISE, defense="optimal-noise(scale=0.01, source=model-source(refresh_every=2))"
    ),
    "fedavg": replace(NOISE, defense="gradient-noise(0.001)", local_steps=2),
    "uneven": replace(NOISE, partition="dirichlet", optimizer="sgd", lr=0.1),
    "pruned": replace(NOISE, defense="optimal-pruning(ratio=0.8)"),
    "private": replace(NOISE, defense="private-noise(2.0, clip=1.0)", partition="dirichlet"),
    "private, with a budget": replace(
        NOISE, defense="private-noise(1.0, clip=1.0, unit='client')", target_epsilon=10.0
    ),
    "private fedavg": replace(
        NOISE, defense="private-noise(2.0, clip=1.0, unit='client')", local_steps=2
    ),
    "server-planned": replace(NOISE, defense="optimal-noise(scale=0.01, source='server')"),
    "server-planned fedavg": replace(
        NOISE, defense="optimal-noise(0.01, source='server')", local_steps=2
    ),
}


def small(name: str, folder: Path) -> TrainingConfig:
    """On small images and a small model."""
    random = np.random.default_rng(0)
    images, labels = random.random((160, 1, 6, 6), np.float32), random.integers(0, 3, 160)
    np.savez(folder / "images.npz", inputs=images, targets=labels)
    return replace(CONFIGS[name], data=str(folder / "images.npz"), model="mlp(sizes=[36, 8, 3])")


def planner(config: TrainingConfig) -> Planner | None:
    """Where the server plans: every second round, from the first examples of the data."""
    if "'server'" not in config.defense:
        return None
    data = load_split(config)
    return Planner(
        (data.inputs[:16], data.targets[:16]),
        config.loss_fn,
        refresh_every=2,
        batch_size=config.batch_size,
        local=config.local,
        seed=config.seed,
    )


def engines(config: TrainingConfig) -> tuple[FederatedRun, FedSGD, App]:
    """The local engine before its first round, and a strategy and a client with the same parts."""
    local, data = build_run(config, planner=planner(config)), load_split(config)
    parts = partition(data.targets, config.clients, config.partition)
    net = local.server.model

    def load(context: Context) -> Any:
        part = parts[int(context.node_config["partition-id"])]
        return data.inputs[part], data.targets[part]

    train = train_function(
        deepcopy(net),
        config.loss_fn,
        load,
        build_defense(local.config["defense"]),
        batch_size=config.batch_size,
        local=config.local,
    )
    model = deepcopy(net)
    strategy = (FedSGD if config.local is None else FedAvgUpdates)(
        model,
        config.optimizer_of(model),
        planner=planner(config),
        account=deepcopy(local.account),
        min_available_nodes=config.clients,
    )
    return local, strategy, partial(with_seed, train)


def with_seed(train: App, message: Message, context: Context) -> Message:
    """As a node whose own configuration has a seed."""
    context.node_config["seed"] = 0
    return train(message, context)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_message_in_a_new_process_gives_the_local_engine(name: str, tmp_path: Path) -> None:
    """All of Flower but its runtime: each context comes to each message out of bytes."""
    config = small(name, tmp_path)
    local, flower, train = engines(config)
    nodes = {i: Context(1, i, {"partition-id": i}, RecordDict(), {}) for i in range(config.clients)}
    result = flower.start(grid=LocalGrid(train, nodes), num_rounds=config.rounds)
    history = local.run(config.rounds)
    for key, value in local.server.model.state_dict().items():
        assert torch.equal(flower.model.state_dict()[key], value), key
    assert [(r.clients, r.skipped, r.examples, r.bytes_sent) for r in flower.rounds] == [
        (row.clients, (), row.examples, row.bytes_sent) for row in history.rounds
    ]
    assert flower.rounds[-1].shape_bytes == history.rounds[-1].shape_bytes
    assert (flower.history.privacy, flower.history.stopped) == (history.privacy, history.stopped)
    told = [found.get("epsilon") for found in result.train_metrics_clientapp.values()]
    assert told == [row.epsilon for row in history.rounds]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # ray leaves files open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["cached", "fedavg", "server-planned"])
def test_simulation_equals_the_local_engine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.simulation import run_simulation

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # Flower changes it
    monkeypatch.setenv("RAY_worker_niceness", "0")
    config = small(name, tmp_path)
    local, flower, train = engines(config)
    server, client = ServerApp(), ClientApp()
    client.train()(train)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        flower.start(grid=grid, num_rounds=config.rounds)

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=config.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    local.run(config.rounds)
    assert [len(replies.clients) for replies in flower.rounds] == [config.clients] * config.rounds
    for key, value in local.server.model.state_dict().items():
        torch.testing.assert_close(flower.model.state_dict()[key], value, rtol=0, atol=1e-6)
