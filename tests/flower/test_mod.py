"""The mod that defends what existing clients return: weights, counts, and nothing else."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, MessageType, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import fitins_to_recorddict, recorddict_to_fitres

from gradveil import (
    ClampedNoise,
    Defense,
    GradientNoise,
    NoDefense,
    OptimalNoise,
    PrivateNoise,
    Rounding,
)
from gradveil.defenses import QSGD, LaplaceNoise, MixUp
from gradveil.flower import DefendReply
from gradveil.mechanisms import Mechanism

from . import small

MOVE = 0.25


@dataclass(frozen=True)
class Uneven(Defense):
    """Noise that looks at nothing, as an outsider would write it."""

    scale: float
    reads = "nothing"

    def mechanism(self, shape, moments):
        return Mechanism(std={n: torch.full(v.shape, self.scale) for n, v in moments.like.items()})


WIDE = {"weight": torch.zeros(200, 200), "mean": torch.ones(1), "steps": torch.tensor([3])}


def app(mod: DefendReply, change: float = MOVE, **metrics: float) -> ClientApp:
    """A client that adds a number to all weights, and tells its loss."""
    built = ClientApp()

    @built.train(mods=[mod])
    def train(message, context):
        arrays = message.content.array_records["arrays"].to_torch_state_dict()
        moved = {n: a + change if a.is_floating_point() else a + 1 for n, a in arrays.items()}
        told = MetricRecord({"num-examples": 12, "loss": 0.5, **metrics})
        content = RecordDict({"arrays": ArrayRecord(moved), "metrics": told})
        return FlowerMessage(content=content, reply_to=message)

    return built


def message(values: dict[str, torch.Tensor] = WIDE) -> FlowerMessage:
    content = RecordDict({"arrays": ArrayRecord(values)})
    return FlowerMessage(content=content, message_type=MessageType.TRAIN, dst_node_id=7)


def answer(mod: DefendReply, **options: float) -> FlowerMessage:
    return app(mod, **options)(message(), small.context())


@pytest.mark.parametrize(
    "defense", [GradientNoise(0.1), LaplaceNoise(0.1)], ids=["normal", "laplace"]
)
def test_the_update_gets_noise_of_the_scale(defense):
    moved = small.values_of(answer(DefendReply(defense)))["weight"]
    assert float(moved.mean()) == pytest.approx(MOVE, abs=5 * 0.1 / 200)
    assert float(moved.std()) == pytest.approx(0.1, rel=0.05)  # 40,000 draws: within 0.7 % or so


def test_a_private_update_is_clipped_as_a_whole():
    private = PrivateNoise(noise_multiplier=0.01, clip=2.0, unit="client")
    sent = answer(DefendReply(private))
    moved = small.values_of(sent)["weight"]
    expected = 2.0 / 200  # the norm 2 spread over 200 x 200 equal entries
    assert float(moved.mean()) == pytest.approx(expected, rel=0.05)
    assert float(moved.std()) == pytest.approx(0.01 * 2.0, rel=0.05)
    assert dict(sent.content.metric_records["metrics"]) == {"num-examples": 1}


def test_nothing_else_is_told():
    sent = answer(DefendReply(GradientNoise(0.1)), accuracy=0.9)
    assert sorted(sent.content) == ["arrays", "metrics"]
    assert dict(sent.content.metric_records["metrics"]) == {"num-examples": 12}


def test_integers_and_unchanged_arrays_come_back_as_they_were_sent():
    sent = small.values_of(answer(DefendReply(GradientNoise(0.1), unchanged=["mean"])))
    assert torch.equal(sent["mean"], WIDE["mean"])
    assert torch.equal(sent["steps"], WIDE["steps"])


@pytest.mark.parametrize("defense", [Uneven(0.1), ClampedNoise(0.1, clip=1.0)])
def test_noise_of_ones_own_that_reads_nothing_is_taken(defense):
    sent = small.values_of(answer(DefendReply(defense)))
    assert float((sent["weight"] - MOVE).std()) == pytest.approx(0.1, rel=0.05)


def test_two_messages_get_different_noise():
    mod = DefendReply(GradientNoise(0.1))
    first, second = (small.values_of(answer(mod))["weight"] for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("change", [float("nan"), "a secret"])
def test_a_failure_tells_nothing(change):
    reply = answer(DefendReply(GradientNoise(0.1)), change=change)
    assert reply.has_error()
    assert reply.error.reason == "The client could not answer. Its own log tells why."


@pytest.mark.parametrize(
    "defense",
    [
        OptimalNoise(0.1),
        MixUp(0.7),
        NoDefense(),
        Rounding(0.1),
        QSGD(4),
        GradientNoise(0.0),
        GradientNoise(utility_budget=0.1),
        PrivateNoise(noise_multiplier=1.0, clip=1.0),
        None,
    ],
    ids=lambda defense: type(defense).__name__,
)
def test_what_needs_more_than_an_update_is_refused(defense):
    with pytest.raises(TypeError, match="train_function"):
        DefendReply(defense)


class Numbers(NumPyClient):
    """A client of the older kind."""

    def fit(self, parameters, config):
        return [part + MOVE for part in parameters], 12, {"loss": 0.5}


def test_a_numpy_client_is_defended_without_a_change():
    older = ClientApp(
        client_fn=lambda context: Numbers().to_client(), mods=[DefendReply(GradientNoise(0.1))]
    )
    weights = [np.zeros((200, 200), np.float32), np.zeros(3, np.float32)]
    content = fitins_to_recorddict(FitIns(ndarrays_to_parameters(weights), {}), keep_input=False)
    asked = FlowerMessage(content=content, message_type=MessageType.TRAIN, dst_node_id=7)
    result = recorddict_to_fitres(older(asked, small.context()).content, keep_input=False)
    moved, _ = parameters_to_ndarrays(result.parameters)
    assert result.num_examples == 12
    assert result.metrics == {}
    assert moved.std() == pytest.approx(0.1, rel=0.05)
    assert moved.mean() == pytest.approx(MOVE, abs=5 * 0.1 / 200)


def test_evaluation_passes():
    mod = DefendReply(GradientNoise(0.1))
    asked = FlowerMessage(content=RecordDict(), message_type=MessageType.EVALUATE, dst_node_id=7)
    assert mod(asked, small.context(), lambda message, context: message) is asked
