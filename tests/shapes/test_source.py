"""Shapes from the model are kept for some calls: when they are made anew, and what is the same."""

import gc
import pickle
import weakref
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from gradveil import GradientMessage, LocalUpdateMessage, OptimalNoise, OptimalPruning
from gradveil.defenses import Defense
from gradveil.federated import Client
from gradveil.shapes import ModelSource, _sources

REFRESH = ModelSource().refresh_every


def generator(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def a_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3))


def a_batch(seed: int = 0, count: int = 4) -> tuple[Tensor, Tensor]:
    draw = generator(seed)
    return torch.randn(count, 6, generator=draw), torch.randint(3, (count,), generator=draw)


def move(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.ones_like(parameter).cumsum(0))


def respond(defense: Defense, model: nn.Module, seed: int = 0, count: int = 4) -> Any:
    inputs, targets = a_batch(seed, count)
    return defense.respond(GradientMessage(model, cross_entropy, targets), inputs, generator())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each time that moments are made."""
    calls: list[int] = []
    original = _sources.model_given

    def counting(*args: Any, **options: Any) -> Any:
        calls.append(len(calls))
        return original(*args, **options)

    monkeypatch.setattr(_sources, "model_given", counting)
    return calls


def test_a_plan_is_made_once_in_so_many_calls(made: list[int]) -> None:
    model, defense = a_model(), OptimalNoise(0.1)
    for _ in range(2 * REFRESH + 1):
        respond(defense, model)
        move(model)
    assert len(made) == 3


def test_a_short_batch_does_not_ask_for_a_new_plan(made: list[int]) -> None:
    model, defense = a_model(), OptimalNoise(0.1)
    for count in (4, 3, 4):
        respond(defense, model, count=count)
    assert len(made) == 1


@pytest.mark.parametrize("change", ["model", "mode", "loss", "local", "type", "frozen", "weights"])
def test_it_is_made_anew_when_what_it_is_for_changes(made: list[int], change: str) -> None:
    model, defense, (inputs, targets) = a_model(), OptimalNoise(0.1), a_batch()
    message: Any = GradientMessage(model, cross_entropy, targets)
    defense.respond(message, inputs)
    if change == "model":
        message = GradientMessage(deepcopy(model), cross_entropy, targets)
    elif change == "mode":
        model.eval()
    elif change == "loss":
        one_hot = torch.eye(3)[targets]
        message = GradientMessage(model, mse_loss, one_hot)
    elif change == "local":
        message = LocalUpdateMessage(model, cross_entropy, targets, lr=0.1, steps=2)
        defense.respond(message, inputs)
        message = LocalUpdateMessage(model, cross_entropy, targets, lr=0.1, steps=3)
    elif change == "type":
        model.double()
        inputs = inputs.double()
    elif change == "frozen":
        model[0].weight.requires_grad_(False)  # type: ignore[union-attr]
    else:
        moved = {n: 2 * p.detach() for n, p in model.named_parameters()}
        message = message.at(moved)
    before = len(made)
    defense.respond(message, inputs)
    assert len(made) == before + 1


def test_a_call_does_not_depend_on_those_before_at_the_same_weights() -> None:
    """Neither on their batches nor on their generators: the plan has a stream of its own."""
    model, used = a_model(), OptimalNoise(0.1)
    inputs, targets = a_batch(3)
    used.backward(model, cross_entropy, inputs, targets, generator(99))
    fresh = respond(OptimalNoise(0.1), model)
    again = respond(used, model)
    for name, value in fresh.sent.items():
        assert torch.equal(value, again.sent[name])
        assert torch.equal(fresh.mechanism.std[name], again.mechanism.std[name])


def replies(client: Client, model: nn.Module, count: int) -> list[Any]:
    found = []
    for _ in range(count):
        found.append(client.reply(model, cross_entropy).values)
        move(model)
    return found


@pytest.mark.parametrize("defense", [OptimalNoise(0.1), OptimalPruning(0.5)], ids=repr)
def test_a_resumed_client_continues_byte_for_byte(defense: Defense) -> None:
    """The plan of the weights before the stop is a part of what is saved."""
    data = a_batch(1, 40)
    model = a_model()
    first, second = (Client(0, *data, defense, batch_size=4, seed=0) for _ in range(2))
    replies(first, model, 3)
    state, other = first.state_dict(), deepcopy(model)
    second.load_state_dict(pickle.loads(pickle.dumps(state)))
    wanted, found = (
        replies(client, at, REFRESH) for client, at in ((first, model), (second, other))
    )
    for one, two in zip(wanted, found, strict=True):
        assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_two_runs_from_one_seed_are_the_same_bytes() -> None:
    runs = []
    for _ in range(2):
        client = Client(0, *a_batch(1, 40), OptimalNoise(0.1), batch_size=4, seed=0)
        runs.append(replies(client, a_model(), REFRESH + 2))
    assert all(torch.equal(a[n], b[n]) for a, b in zip(*runs, strict=True) for n in a)


def test_a_model_is_not_kept_alive() -> None:
    model, defense = a_model(), OptimalNoise(0.1)
    respond(defense, model)
    watched = weakref.ref(model)
    del model
    gc.collect()
    assert watched() is None


def test_the_memory_is_no_part_of_what_a_defense_is() -> None:
    used, model = OptimalNoise(0.1), a_model()
    respond(used, model)
    assert used == OptimalNoise(0.1)
    assert hash(used) == hash(OptimalNoise(0.1))
    assert repr(used) == repr(OptimalNoise(0.1))
    assert pickle.loads(pickle.dumps(used)).state_dict() == {}
    assert deepcopy(used).state_dict()["step"] == 1
    assert used.without_memory().state_dict() == {}
    used.reset()
    assert used.state_dict() == {}


def test_the_state_of_another_defense_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"should have the keys .* Found \['step'\]"):
        OptimalNoise(0.1).load_state_dict({"step": 1})
