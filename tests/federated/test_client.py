"""A client sends defended values and a count, from its own data and its own streams."""

import contextlib
import dataclasses
import io

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import (
    Defended,
    Defense,
    GradientMessage,
    GradientNoise,
    NoDefense,
    NonFiniteError,
    OptimalNoise,
    OptimalPruning,
    PrivateNoise,
    Rounding,
)
from gradveil.defenses import ErrorFeedback, MixUp
from gradveil.federated import Client, LocalSteps, NoReplyError, Reply
from gradveil.shapes import ModelSource

from .small import Tensors, assert_same, client, examples, model

DEFENSES = {
    "none": NoDefense(),
    "noise": GradientNoise(0.1),
    "optimal noise": OptimalNoise(0.1),
    "optimal pruning": OptimalPruning(0.5),
    "rounding": Rounding(0.1),
    "error feedback": ErrorFeedback(0.5),
    "mix-up": MixUp(),
    "cached": OptimalNoise(0.1, source=ModelSource(2)),
}
pytestmark = pytest.mark.usefixtures("global_rng_watch")


def plain_gradient(trained: nn.Module, inputs: Tensor, targets: Tensor) -> Tensors:
    return GradientMessage(trained, cross_entropy, targets)(inputs)


def test_nothing_but_values_and_a_count_leaves() -> None:
    assert [field.name for field in dataclasses.fields(Reply)] == ["values", "examples"]
    trained, sender = model(), client(0, GradientNoise(0.5))
    chosen = sender.next_indices()
    reply = sender.reply(trained, cross_entropy)
    undefended = plain_gradient(trained, sender.inputs[chosen], sender.targets[chosen])
    assert reply.examples == 4
    assert reply.values.keys() == undefended.keys()
    assert not any(torch.isin(reply.values[n], g).any() for n, g in undefended.items())


@pytest.mark.parametrize("local", [None, LocalSteps(lr=0.1, steps=2)], ids=["FedSGD", "FedAvg"])
@pytest.mark.parametrize("name", DEFENSES)
def test_a_reply_with_costs_is_the_same_reply(name: str, local: LocalSteps | None) -> None:
    trained = model()
    first, second = (client(1, DEFENSES[name], local=local) for _ in range(2))
    for _ in range(4):
        alone = first.reply(trained, cross_entropy)
        beside, costs = second.reply_with_costs(trained, cross_entropy)
        assert_same(alone.values, beside.values)
        assert alone.examples == beside.examples
        assert costs.loss > 0


def test_costs_are_those_of_the_batch() -> None:
    trained, sender = model(), client(0, GradientNoise(0.5))
    chosen = sender.next_indices()
    inputs, targets = sender.inputs[chosen], sender.targets[chosen]
    costs = sender.reply_with_costs(trained, cross_entropy)[1]
    square = sum(float(g.square().sum()) for g in plain_gradient(trained, inputs, targets).values())
    assert costs.loss == pytest.approx(cross_entropy(trained(inputs), targets).item())
    assert costs.utility_first == pytest.approx(square)
    assert costs.utility_second == pytest.approx(-square * 0.25)


def test_an_epoch_takes_every_example_once_and_the_next_in_another_order() -> None:
    trained, sender = model(), client(count=10)
    orders = []
    for _ in range(3):
        taken = []
        for size in (4, 4, 2):
            taken += sender.next_indices().tolist()
            assert sender.reply(trained, cross_entropy).examples == size
        assert sorted(taken) == list(range(10))
        orders.append(tuple(taken))
    assert len(set(orders)) == 3


def test_streams_belong_to_one_client_and_one_seed() -> None:
    trained, data = model(), examples(10)

    def first_reply(identifier: int, seed: int) -> tuple[tuple[int, ...], Tensor]:
        sender = Client(identifier, *data, GradientNoise(1.0), batch_size=4, seed=seed)
        order = tuple(sender.next_indices().tolist())
        return order, sender.reply(trained, cross_entropy).values["layers.1.weight"]

    places = [(0, 0), (1, 0), (0, 1), (10, 0), (1, 1)]
    orders, sent = zip(*[first_reply(*place) for place in places], strict=True)
    assert len(set(orders)) == len(places)
    assert len({float(value[0, 0]) for value in sent}) == len(places)
    again = first_reply(*places[1])
    assert again[0] == orders[1]
    assert torch.equal(again[1], sent[1])


def test_without_a_seed_nobody_can_repeat_the_noise() -> None:
    trained, sender = model(), client(0, GradientNoise(1.0), seed=None)
    state = sender.state_dict()
    first = sender.reply(trained, cross_entropy)
    sender.load_state_dict(state)
    second = sender.reply(trained, cross_entropy)
    assert first.examples == second.examples
    assert not any(torch.equal(v, second.values[n]) for n, v in first.values.items())


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("name", DEFENSES)
def test_a_state_continues_with_identical_bytes(name: str, steps: int) -> None:
    trained = model()
    first, second = (client(2, DEFENSES[name]) for _ in range(2))
    for _ in range(steps):
        first.reply(trained, cross_entropy)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(4):
        replies = [c.reply(trained, cross_entropy) for c in (first, second)]
        assert_same(replies[0].values, replies[1].values)


def test_a_foreign_state_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Parameter `state` should have the keys.*\['step'\]"):
        client().load_state_dict({"step": 1})


def test_what_a_defense_remembers_is_the_clients_own() -> None:
    shared, trained = OptimalNoise(0.1, source=ModelSource(2)), model()
    one, other = client(0, shared), client(1, shared)
    one.reply(trained, cross_entropy)
    assert one.state_dict()["defense"]["step"] == 1
    assert other.state_dict()["defense"] == {}
    assert shared.state_dict() == {}


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fedavg_sends_the_change_of_local_sgd(batch_size: int | None, momentum: float) -> None:
    trained = model()
    sender = client(0, local=LocalSteps(0.1, 3, batch_size, momentum))
    chosen = sender.next_indices()
    inputs, targets = sender.inputs[chosen], sender.targets[chosen]
    sent = sender.reply(trained, cross_entropy).values
    moved = model()
    optimizer = torch.optim.SGD(moved.parameters(), lr=0.1, momentum=momentum)
    pieces = list(zip(inputs.split(batch_size or 4), targets.split(batch_size or 4), strict=True))
    for step in range(3):
        x, y = pieces[step % len(pieces)]
        optimizer.zero_grad()
        cross_entropy(moved(x), y).backward()
        optimizer.step()
    before = dict(trained.named_parameters())
    for name, parameter in moved.named_parameters():
        torch.testing.assert_close(sent[name], (parameter - before[name]).detach())


def test_no_data_is_a_clear_error() -> None:
    with pytest.raises(NoReplyError, match="Client 3 should have at least one example"):
        client(3, count=0).reply(model(), cross_entropy)


def test_a_nan_is_never_sent_and_its_batch_is_left_behind() -> None:
    trained, sender = model(), client()
    for call in (sender.reply, sender.reply_with_costs):
        before = sender.state_dict()["step"]
        with pytest.raises(NonFiniteError):
            call(trained, lambda outputs, _: outputs.sum() * float("nan"))
        assert sender.state_dict()["step"] == before + 1


def test_a_nan_loss_with_a_finite_gradient_is_seen() -> None:
    def bad(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) + float("nan")

    with pytest.raises(NonFiniteError, match=r"`loss_fn\(model\(inputs\), targets\)`"):
        client().reply_with_costs(model(), bad)


def test_the_size_of_a_reply() -> None:
    dense = Reply({"w": torch.ones(10, 10), "b": torch.ones(5)}, 1)
    assert dense.size == 420
    pruned = Reply({"w": torch.eye(10), "b": torch.zeros(5)}, 1)
    assert pruned.size == 80


class Sign(Defense):
    """A defense with a response of its own and no mechanism."""

    def respond(self, message, inputs, generator=None):  # type: ignore[no-untyped-def]
        values = message(inputs)
        return Defended(values, None, {name: value.sign() for name, value in values.items()})


def test_a_defense_with_a_response_of_its_own_is_respected() -> None:
    reply, costs = client(0, Sign()).reply_with_costs(model(), cross_entropy)
    assert all(bool((value.abs() <= 1).all()) for value in reply.values.values())
    assert costs.utility_first is None
    assert costs.utility_second is None


def test_bad_arguments() -> None:
    inputs, targets = examples(4)
    with pytest.raises(ValueError, match="Parameter `batch_size` should be an integer"):
        Client(0, inputs, targets, NoDefense(), batch_size=0, seed=0)
    with pytest.raises(ValueError, match="one example for each of the `targets`"):
        Client(0, inputs, targets[:2], NoDefense(), batch_size=1, seed=0)
    with pytest.raises(NonFiniteError):
        Client(0, inputs / 0, targets, NoDefense(), batch_size=1, seed=0)


def _with_dropout() -> nn.Module:
    with torch.random.fork_rng():
        return nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 3))


def _dropped(reply: Reply) -> Tensor:
    """Which hidden units a reply of one example says were dropped."""
    return reply.values["2.weight"].abs().sum(0) == 0


def test_dropout_is_drawn_anew_for_each_reply_and_client() -> None:
    net = _with_dropout()

    def masks(identifier: int, seed: int | None) -> list[Tensor]:
        data = examples(4, seed=identifier)
        made = Client(identifier, *data, NoDefense(), batch_size=1, seed=seed)
        return [_dropped(made.reply(net, cross_entropy)) for _ in range(3)]

    drawn = [*masks(0, 0), *masks(1, 0), *masks(0, None)]
    assert len({tuple(mask.tolist()) for mask in drawn}) == len(drawn)
    assert all(map(torch.equal, masks(0, 0), masks(0, 0)))


def test_dropout_in_a_training_loop_follows_the_generator() -> None:
    net = _with_dropout()
    inputs, targets = examples(1)

    def sent(generator: torch.Generator) -> Tensor:
        return NoDefense().backward(net, cross_entropy, inputs, targets, generator)["2.weight"]

    first, again = (torch.Generator().manual_seed(0) for _ in range(2))
    assert torch.equal(sent(first), sent(again))
    assert not torch.equal(sent(first), sent(torch.Generator().manual_seed(0)))


SEEN: list[float] = []


class Keeps(torch.nn.Module):
    """Notes what it saw outside of itself, as a running mean for a log."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN.append(float(x.mean()))
        if bool((x == 7).any()):
            raise ValueError("a 7")
        return self.head(x)


@pytest.mark.parametrize("value", [1.0, 7.0])
def test_code_keeps_nothing_of_a_private_batch(value: float) -> None:
    """Neither from the loss that is shown nor from the search for what failed."""
    SEEN.clear()
    defense = PrivateNoise(1.0, 0.1)
    inputs = torch.full((6, 4), value)
    labels = torch.zeros(6).long()
    own = Client(0, inputs, labels, defense, batch_size=2, seed=None, sample_rate=1.0)
    with torch.random.fork_rng():
        asked = Keeps()
    with contextlib.suppress(ValueError):
        loss = own.reply_with_costs(asked, cross_entropy)[1].loss
        assert loss is not None
    with contextlib.suppress(ValueError):
        own.reply(asked, cross_entropy)
    assert SEEN
    assert value not in SEEN
