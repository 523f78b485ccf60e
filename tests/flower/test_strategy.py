"""The strategies: torch's own optimizer steps, and replies that do not count."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import NoDefense, PrivateNoise
from gradveil.federated import LocalSteps, Skip
from gradveil.flower import FedAvgUpdates, FedSGD, train_function
from gradveil.privacy import BudgetError, PrivacyAccount, epsilon_on_grid

from . import small


def fedsgd(**options) -> FedSGD:
    model = small.model()
    return FedSGD(model, torch.optim.Adam(model.parameters(), lr=0.01), **options)


def like(weights: nn.Module, fill: float) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(p, fill).detach() for name, p in weights.named_parameters()}


def weights_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_steps_of_adam_on_the_weighted_mean():
    strategy, reference = fedsgd(), small.model()
    adam = torch.optim.Adam(reference.parameters(), lr=0.01)
    for step in range(5):
        a, b = 1.0 + step, -2.0
        replies = [
            small.reply(like(reference, a), 3, node=1),
            small.reply(like(reference, b), 1, node=2),
        ]
        arrays, metrics = strategy.aggregate_train(step + 1, replies)
        for parameter in reference.parameters():
            parameter.grad = torch.full_like(parameter, (3 * a + b) / 4)
        adam.step()
        assert dict(metrics) == {"num-examples": 4, "replies": 2, "skipped": 0}
    torch.testing.assert_close(weights_of(strategy.model), weights_of(reference), rtol=0, atol=1e-6)
    sent = arrays.to_torch_state_dict()
    assert all(torch.equal(sent[n], v) for n, v in strategy.model.state_dict().items())


def account(budget: float | None = None) -> PrivacyAccount:
    return PrivacyAccount(4.0, 1.0, 1e-5, budget=budget, neighbours="zero-out")


def private_grid(**settings: Any) -> small.LocalGrid:
    noise = PrivateNoise(noise_multiplier=4.0, clip=1.0)
    app = train_function(small.model(), cross_entropy, small.examples(), noise, batch_size=4)
    return small.LocalGrid(app, {7: small.context(7, **settings), 8: small.context(8)})


def test_an_account_counts_rounds_and_ends_the_run_before_its_budget():
    spent = [epsilon_on_grid(4.0, 1.0, rounds, 1e-5) for rounds in (1, 2, 3)]
    strategy = fedsgd(account=account((spent[1] + spent[2]) / 2))
    result = strategy.start(grid=private_grid(), num_rounds=10)
    found = [dict(result.train_metrics_clientapp[number]) for number in (1, 2)]
    assert [row["epsilon"] for row in found] == spent[:2]
    assert [row["num-examples"] for row in found] == [8, 8]  # whatever was drawn
    assert list(result.train_metrics_clientapp) == [1, 2]
    assert strategy.history.stopped is not None
    assert strategy.history.stopped.startswith("After 2 rounds ε is")
    with pytest.raises(BudgetError):
        strategy.configure_train(3, ArrayRecord(), ConfigRecord(), private_grid())


@pytest.mark.parametrize(("settings", "simulated"), [({}, False), ({"seed": 5}, True)])
def test_one_node_with_a_seed_makes_a_simulation_of_the_account(settings, simulated):
    strategy = fedsgd(account=account((epsilon_on_grid(4.0, 1.0, 1, 1e-5)) * 1.01))
    result = strategy.start(grid=private_grid(**settings), num_rounds=2)
    assert result.train_metrics_clientapp[1]["simulation"] == int(simulated)
    assert strategy.history.privacy is not None
    assert (strategy.history.privacy["simulation"], strategy.history.privacy["neighbours"]) == (
        simulated,
        "zero-out",
    )
    assert (strategy.history.stopped or "").startswith(
        "In this simulation, after 1 rounds"
    ) == simulated


def test_a_budget_below_one_round_asks_nobody():
    strategy = fedsgd(account=account(0.01))
    before = weights_of(strategy.model).clone()
    assert not strategy.start(grid=private_grid(), num_rounds=3).train_metrics_clientapp
    assert torch.equal(weights_of(strategy.model), before)


def test_a_run_within_its_budget_is_not_stopped():
    strategy = fedsgd(account=account(100.0))
    strategy.start(grid=private_grid(), num_rounds=2)
    assert (len(strategy.rounds), strategy.history.stopped) == (2, None)
    with pytest.raises(TypeError, match="Parameter `account` should be of type PrivacyAccount"):
        fedsgd(account=4.0)


def test_updates_are_added():
    strategy, before = FedAvgUpdates(small.model()), weights_of(small.model())
    replies = [
        small.reply(like(small.model(), 1.0), 1, node=1),
        small.reply(like(small.model(), -1.0), 3, node=2),
    ]
    strategy.aggregate_train(1, replies)
    torch.testing.assert_close(weights_of(strategy.model), before - 0.5)


def broken_array() -> Array:
    return Array("float32", (3,), "numpy.ndarray", b"no array at all")


def test_bad_replies_are_skipped_and_counted():
    good, model = like(small.model(), 1.0), small.model()
    name = next(iter(good))
    too_large = {**good, name: torch.full_like(good[name], 1e300, dtype=torch.float64)}
    unreadable = small.reply(good, node=10)
    unreadable.content.array_records["arrays"][name] = broken_array()
    bad = [
        small.reply({**good, "more": torch.ones(2)}, node=1),
        small.reply({**good, name: torch.ones(5)}, node=2),
        small.reply({**good, name: good[name] * math.nan}, node=3),
        small.reply(too_large, node=4),
        small.reply({**good, name: good[name].to(torch.complex64)}, node=5),
        small.reply(good, examples=0, node=6),
        small.reply(good, examples=1.5, node=7),
        small.reply(good, node=8, second=MetricRecord({"loss": 1.0})),
        Message(Error(2, "secret"), reply_to=small.train_message(model, node=9)),
        unreadable,
    ]
    strategy, alone = fedsgd(), fedsgd()
    twice = [small.reply(good, node=11), small.reply(like(model, 9.0), node=11)]
    _, metrics = strategy.aggregate_train(1, [*bad, *twice])
    alone.aggregate_train(1, [small.reply(good, node=11)])
    assert dict(metrics) == {"num-examples": 4, "replies": 1, "skipped": 11}
    assert strategy.history.skipped == 11
    assert strategy.rounds[0].clients == (11,)
    assert Counter(skip.client for skip in strategy.rounds[0].skipped) == Counter(range(1, 12))
    assert torch.equal(weights_of(strategy.model), weights_of(alone.model))


def test_round_without_a_good_reply_leaves_everything():
    strategy, before = fedsgd(), weights_of(small.model())
    arrays, metrics = strategy.aggregate_train(1, [])
    assert arrays is None
    assert dict(metrics) == {"num-examples": 0, "replies": 0, "skipped": 0}
    assert torch.equal(weights_of(strategy.model), before)
    assert not strategy.server.optimizer.state


def grid(local: LocalSteps | None = None) -> small.LocalGrid:
    train = train_function(
        small.model(5), cross_entropy, small.examples(), NoDefense(), batch_size=4, local=local
    )
    nodes = {node: small.context(node, seed=0, **{"partition-id": node}) for node in (0, 1, 2)}
    return small.LocalGrid(train, nodes)


def test_nodes_that_come_late_are_in_the_first_round(monkeypatch: pytest.MonkeyPatch):
    strategy, nodes = fedsgd(min_available_nodes=3), grid()
    here = iter([[], [0], [0, 1, 2]])
    monkeypatch.setattr(nodes, "get_node_ids", lambda: next(here, [0, 1, 2]))
    strategy.start(grid=nodes, num_rounds=1)
    assert [found.clients for found in strategy.rounds] == [(0, 1, 2)]


def test_a_node_that_dies_does_not_end_the_run():
    strategy, nodes = fedsgd(min_available_nodes=3), grid()

    def at_the_end_of(server_round, arrays):
        if server_round == 1:
            nodes.silent.add(2)
        if server_round == 2:
            nodes.gone.add(2)
        if server_round == 3:
            del nodes.contexts[2]

    strategy.start(grid=nodes, num_rounds=4, evaluate_fn=at_the_end_of)
    assert [len(found.clients) for found in strategy.rounds] == [3, 2, 2, 2]
    assert [found.skipped for found in strategy.rounds] == [
        (),
        (Skip(2, "No answer in time."),),
        (Skip(2, "The client failed with code 5."),),
        (),
    ]


@pytest.mark.parametrize("kind", ["given", "own"])
def test_start_from_given_arrays_or_the_models_own(kind):
    strategy, nodes = fedsgd(), grid()
    initial = ArrayRecord(small.model(3).state_dict()) if kind == "given" else None
    expected = small.model(3 if kind == "given" else 0)
    seen = []

    def look(server_round, arrays):
        seen.append(arrays.to_torch_state_dict())

    strategy.start(nodes, initial, num_rounds=1, evaluate_fn=look)
    assert all(torch.equal(v, expected.state_dict()[n]) for n, v in seen[0].items())
    assert not all(torch.equal(v, expected.state_dict()[n]) for n, v in seen[1].items())


def test_batchnorm_statistics_go_out_and_never_come_back():
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()
    model[1].running_mean.fill_(0.5)
    strategy = FedSGD(model, torch.optim.SGD(model.parameters(), lr=0.1))
    nodes = grid()
    nodes.app = train_function(
        nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
        cross_entropy,
        small.examples(),
        NoDefense(),
    )
    messages = list(
        strategy.configure_train(1, ArrayRecord(model.state_dict()), ConfigRecord(), nodes)
    )
    assert "1.running_mean" in messages[0].content.array_records["arrays"]
    replies = list(nodes.send_and_receive(messages))
    assert not any("running" in n for r in replies for n in small.values_of(r))
    strategy.aggregate_train(1, replies)
    assert torch.equal(model[1].running_mean, torch.full((4,), 0.5))
    assert strategy.history.skipped == 0


def test_fraction_evaluate_and_other_options_are_flowers():
    assert fedsgd(fraction_train=0.5).fraction_train == 0.5
    assert fedsgd().fraction_evaluate == 0.0
    with pytest.raises(TypeError, match="fractoin_train"):
        fedsgd(fractoin_train=0.5)
