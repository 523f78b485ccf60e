"""A client whose model or loss is broken says so, and sends nothing."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import (
    Defended,
    Defense,
    GradientNoise,
    NoDefense,
    NonFiniteError,
    OptimalNoise,
)
from gradveil.federated import Client, FederatedRun, LocalSteps, NoReplyError
from gradveil.shapes import ModelSource

from .small import client, examples, model, server

pytestmark = pytest.mark.usefixtures("global_rng_watch")
LOCALS = [None, LocalSteps(lr=0.1, steps=2)]
DEFENSES = [
    NoDefense(),
    GradientNoise(0.1),
    OptimalNoise(0.1),
    OptimalNoise(0.1, source=ModelSource()),
]


class Own(Defense):
    """A defense with a response of its own, which gives something else than it was given."""

    def __init__(self, fill: float) -> None:
        self.fill = fill

    def respond(self, message, inputs, generator=None):  # type: ignore[no-untyped-def]
        values = message(inputs)
        sent = {n: torch.full_like(v, self.fill) for n, v in values.items()}
        return Defended(values, None, sent)


def constant(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.detach().sum()


def flat(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs * 0).sum()


def both(sender: Client, trained: nn.Module, loss: object, error: type, words: str) -> None:
    for call in (sender.reply, sender.reply_with_costs):
        with pytest.raises(error, match=words):
            call(trained, loss)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("local", LOCALS, ids=["FedSGD", "FedAvg"])
@pytest.mark.parametrize("defense", DEFENSES, ids=lambda d: type(d).__name__)
def test_weights_that_are_not_finite(
    defense: Defense, local: LocalSteps | None, bad: float
) -> None:
    trained = model()
    with torch.no_grad():
        trained.layers[1].weight[0, 0] = bad  # type: ignore[index, union-attr]
    words = "`the model's weights` should be finite. Found 1 of 48.*`layers.1.weight`"
    both(client(0, defense, local=local), trained, cross_entropy, NonFiniteError, words)


@pytest.mark.parametrize("local", LOCALS, ids=["FedSGD", "FedAvg"])
@pytest.mark.parametrize("defense", [*DEFENSES, Own(1.0)], ids=lambda d: type(d).__name__)
def test_a_loss_that_depends_on_nothing(defense: Defense, local: LocalSteps | None) -> None:
    sender = client(0, defense, local=local)
    both(sender, model(), constant, NoReplyError, "the loss depends on no parameter")


@pytest.mark.parametrize("local", LOCALS, ids=["FedSGD", "FedAvg"])
@pytest.mark.parametrize("defense", [*DEFENSES, Own(1.0)], ids=lambda d: type(d).__name__)
def test_a_message_of_zeros(defense: Defense, local: LocalSteps | None) -> None:
    words = "all of its 83 entries are 0.*pass `allow_zero=True`"
    both(client(0, defense, local=local), model(), flat, NoReplyError, words)


def test_zeros_are_sent_where_the_client_says_so() -> None:
    for defense in (NoDefense(), GradientNoise(0.5), Own(1.0)):
        sender = Client(0, *examples(4), defense, batch_size=4, seed=0, allow_zero=True)
        sent = sender.reply(model(), flat).values
        assert all(bool(value.any()) is (defense != NoDefense()) for value in sent.values())


@pytest.mark.parametrize("defense", [Own(float("nan")), Own(float("inf"))])
def test_what_a_defense_makes_infinite_is_not_sent(defense: Defense) -> None:
    with pytest.raises(ValueError, match="finite"):
        client(0, defense).reply(model(), cross_entropy)


def test_a_round_skips_who_has_no_signal_and_fails_where_nobody_has() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return flat(outputs, targets) if len(targets) < 4 else cross_entropy(outputs, targets)

    good, bad = client(0), client(1, count=3)
    row = FederatedRun(server(), [good, bad], loss).step()
    assert row.clients == (0,)
    assert [(skip.client, "entries are 0" in skip.reason) for skip in row.skipped] == [(1, True)]
    with pytest.raises(NoReplyError, match="all of its 83 entries are 0"):
        FederatedRun(server(), [client(1, count=3)], loss).step()
