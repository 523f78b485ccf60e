"""Clients, servers, runs and their configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from gradveil import NoDefense
from gradveil.federated import (
    Client,
    FederatedRun,
    Server,
    TrainingConfig,
    evaluate,
    partition,
    sample_clients,
    train,
)
from tests.wrong_arguments.cases import (
    HUGE,
    INF,
    INPUTS,
    NAN,
    TARGETS,
    Wrong,
    assert_refused,
    model,
    table,
)


def config(**changes: Any) -> Callable[[], Any]:
    return lambda: TrainingConfig(**changes)


def client(**changes: Any) -> Any:
    options: dict[str, Any] = {
        "identifier": 0, "inputs": INPUTS, "targets": TARGETS, "defense": NoDefense(),
        "batch_size": 2, "seed": 0, **changes,
    }  # fmt: skip
    return Client(**options)


def made(**changes: Any) -> Callable[[], Any]:
    return lambda: client(**changes)


def server() -> Server:
    network = model()
    return Server(network, torch.optim.SGD(network.parameters(), lr=0.1))


def run(**changes: Any) -> Callable[[], Any]:
    options: dict[str, Any] = {"server": server(), "clients": [client()], "loss_fn": cross_entropy}
    return lambda: FederatedRun(**{**options, **changes})


@table(
    (config(data=3), "data", "3"),
    (config(model=3), "model", "3"),
    (config(defense=NoDefense()), "defense", "NoDefense"),
    (config(clients=0), "clients", "0"),
    (config(clients=2.5), "clients", "2.5"),
    (config(batch_size=-1), "batch_size", "-1"),
    (config(rounds=0), "rounds", "0"),
    (config(rounds="ten"), "rounds", "'ten'"),
    (config(partition="random"), "partition", "'random'"),
    (config(alpha=0.0), "alpha", "0.0"),
    (config(alpha=NAN), "alpha", "nan"),
    (config(fraction=0.0), "fraction", "0.0"),
    (config(fraction=2), "fraction", "2"),
    (config(fraction="half"), "fraction", "'half'"),
    (config(optimizer="rmsprop"), "optimizer", "'rmsprop'"),
    (config(lr=0.0), "lr", "0.0"),
    (config(lr=1e38), "lr", "1e+38"),
    (config(lr=INF), "lr", "inf"),
    (config(local_steps=0), "local_steps", "0"),
    (config(local_lr=-1.0), "local_lr", "-1.0"),
    (config(local_batch_size=0), "local_batch_size", "0"),
    (config(limit=0), "limit", "0"),
    (config(held_out=-1), "held_out", "-1"),
    (config(held_out=1.5), "held_out", "1.5"),
    (config(held_out_start=-1), "held_out_start", "-1"),
    (config(evaluate_every=0), "evaluate_every", "0"),
    (config(seed=-1), "seed", "-1"),
    (config(seed=2**70), "seed", str(2**70)),
    (config(seed=0.5), "seed", "0.5"),
    (config(seed=HUGE), "seed", "1329 bits"),
    (config(device="meta"), "device", "'meta'"),
    (config(device="abacus"), "device", "'abacus'"),
    (config(device="cpu:7"), "device", "'cpu:7'"),
    (config(device=3), "device", "3"),
    (lambda: train(None), "config", "None"),
    (lambda: train(TrainingConfig(), resume="yes"), "resume", "'yes'"),
    (lambda: train(TrainingConfig(), resume=True), "out", "None"),
    (lambda: train(TrainingConfig(), checkpoint_every=0), "checkpoint_every", "0"),
    (lambda: train(TrainingConfig(data="nowhere.npz"), out="run"), "source", "nowhere.npz"),
    (lambda: train(TrainingConfig(model="resnet"), out="run"), "resnet", "A model"),
    (lambda: train(TrainingConfig(defense="nose"), out="run"), "nose", "defense"),
    (lambda: train(TrainingConfig(data="cifar10", held_out=512), out="run"), "held_out", "512"),
)
def test_configurations(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)


def test_a_model_that_does_not_fit_leaves_no_folder(empty: Path) -> None:
    wrong = TrainingConfig(data="cifar10", model="simple-conv-net", held_out=4, clients=2, rounds=1)
    case = Wrong(lambda: train(wrong, out="deep/run"), "model", "(2, 3, 32, 32)")
    assert_refused(case, empty)


@table(
    (made(identifier=-1), "identifier", "-1"),
    (made(identifier="a"), "identifier", "'a'"),
    (made(inputs=[1.0]), "inputs", "list"),
    (made(inputs=INPUTS.half()), "inputs", "torch.float16"),
    (made(inputs=INPUTS[:2]), "inputs", "(2, 5)"),
    (made(targets=[0]), "targets", "list"),
    (made(defense="no-defense"), "defense", "'no-defense'"),
    (made(defense=NoDefense), "defense", "NoDefense"),
    (made(batch_size=0), "batch_size", "0"),
    (made(seed=-1), "seed", "-1"),
    (made(seed="a"), "seed", "'a'"),
    (made(local=(0.1, 2)), "local", "(0.1, 2)"),
    (lambda: client().load_state_dict({"step": 1}), "state", "['step']"),
    (lambda: client().reply(model(), None), "loss_fn", "None"),
    (
        lambda: client(targets=TARGETS + 3).reply_with_costs(model(), cross_entropy),
        "targets",
        "out of bounds",
    ),
    (lambda: Server("mlp"), "model", "str"),
    (lambda: Server(model()), "optimizer", "None"),
    (lambda: Server(model(), "adam"), "optimizer", "'adam'"),
    (lambda: Server(model(), kind="weights"), "kind", "'weights'"),
    (lambda: server().step(3), "replies", "3"),
    (lambda: server().step([(0, {})]), "replies", "{}"),
    (lambda: client().reply("mlp", cross_entropy), "model", "str"),
    (lambda: evaluate("mlp", cross_entropy, INPUTS, TARGETS), "model", "'mlp'"),
    (lambda: evaluate(model(), None, INPUTS, TARGETS), "loss_fn", "None"),
    (lambda: evaluate(model(), cross_entropy, INPUTS, [0]), "targets", "list"),
    (run(server=None), "server", "None"),
    (run(clients=[]), "clients", "[]"),
    (run(clients=client()), "clients", "Client"),
    (run(clients=["a"]), "clients", "'a'"),
    (run(clients=[client(), client()]), "clients", "[0, 0]"),
    (run(loss_fn="ce"), "loss_fn", "'ce'"),
    (run(fraction=-1.0), "fraction", "-1.0"),
    (run(fraction=NAN), "fraction", "nan"),
    (run(seed=-5), "seed", "-5"),
    (run(held_out=INPUTS), "held_out", "Tensor"),
    (run(evaluate_every=0), "evaluate_every", "0"),
    (lambda: run()().run(0), "rounds", "0"),
    (lambda: run()().run(1, checkpoint_every=0), "checkpoint_every", "0"),
    (lambda: partition([0, 1], 2), "targets", "list"),
    (lambda: partition(torch.zeros(2, 2), 1, "dirichlet"), "targets", "(2, 2)"),
    (lambda: partition(TARGETS, 0), "clients", "0"),
    (lambda: partition(TARGETS, 9), "targets", "4"),
    (lambda: partition(TARGETS, 2, "even"), "kind", "'even'"),
    (lambda: partition(TARGETS, 2, "dirichlet", alpha=-1.0), "alpha", "-1.0"),
    (lambda: partition(TARGETS, 2, seed=-1), "seed", "-1"),
    (lambda: sample_clients([0, 1], 0.0, 0, 1), "fraction", "0.0"),
)
def test_parts(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)
