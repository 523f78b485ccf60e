"""A server that asks for what it should not get: nothing is sent, and it is told nothing."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common.serde import message_to_proto
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import GradientNoise, NoDefense, OptimalNoise
from gradveil.federated import Client, Limits, LocalSteps
from gradveil.flower import reply_to, train_function

from . import small
from .test_train import assert_same

pytestmark = pytest.mark.usefixtures("global_rng_watch")
LIMITS = Limits(["gradient-noise(scale=0.1)"], batch_size=(2, 5), local_steps=(1, 3))


def message(arrays: dict[str, np.ndarray], **config: Any) -> Message:
    record = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    content = RecordDict({"arrays": record, "config": ConfigRecord(config)})
    return Message(content=content, message_type=MessageType.TRAIN, dst_node_id=7)


def weights() -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in small.model().state_dict().items()}


def function(model: nn.Module | None = None, **options: Any) -> Any:
    data = small.examples()
    defense = options.pop("defense", GradientNoise(0.1))
    return train_function(
        model or small.model(1), cross_entropy, data, defense, batch_size=4, **options
    )


def assert_refused(train: Any, asked: Message, words: str, caplog: Any, **node: Any) -> None:
    with caplog.at_level(logging.ERROR, "gradveil.flower"):
        answer = train(asked, small.context(**node))
    assert answer.has_error()
    assert not answer.has_content()
    assert words in caplog.text
    assert answer.error.reason == "The client could not answer. Its own log tells why."
    assert words.encode() not in message_to_proto(answer).SerializeToString()


def _with(name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    return {**weights(), name: value}


WEIGHT, BIAS = "layers.1.weight", "layers.1.bias"
HOSTILE = {
    "missing": ({WEIGHT: weights()[WEIGHT]}, "missing names"),
    "unknown": (_with("layers.9.bias", np.zeros(3, "f4")), "unknown names ['layers.9.bias']"),
    "shape": (_with(WEIGHT, np.zeros((6, 8), "f4")), "Found shape (6, 8) for `layers.1.weight`"),
    "broadcast": (_with(BIAS, np.zeros((1, 8), "f4")), "Found shape (1, 8)"),
    "number": (_with(BIAS, np.zeros((), "f4")), "Found shape ()"),
    "double": (_with(BIAS, np.zeros(8)), "torch.float64 for `layers.1.bias`"),
    "half": (_with(BIAS, np.zeros(8, "f2")), "torch.float16 for `layers.1.bias`"),
    "integers": (_with(BIAS, np.zeros(8, "i8")), "torch.int64 for `layers.1.bias`"),
    "booleans": (_with(BIAS, np.zeros(8, "?")), "torch.bool for `layers.1.bias`"),
    "words": (_with(BIAS, np.array(["x"] * 8)), "readable by numpy"),
    "NaN": (_with(BIAS, np.full(8, np.nan, "f4")), "`the weights that the server sent` should"),
    "infinity": (_with(BIAS, np.full(8, np.inf, "f4")), "8 of 8 entries NaN or infinite"),
    "huge": (_with(WEIGHT, np.full((8, 6), 3e38, "f4")), "NaN or infinite"),
    "nothing": ({}, "missing names"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_weights_of_another_kind_are_refused_and_leave_the_model(case: str, caplog: Any) -> None:
    arrays, words = HOSTILE[case]
    model = small.model(1)
    assert_refused(function(model), message(arrays), words, caplog, seed=0)
    if case != "huge":  # finite, and so loaded; its gradient is not
        assert_same(model.state_dict(), small.model(1).state_dict())


def test_bytes_that_are_no_array(caplog: Any) -> None:
    asked = message(weights())
    record = asked.content.array_records["arrays"]
    record[BIAS] = Array("float32", (8,), "numpy.ndarray", b"\x80\x04cos\nsystem\n")
    assert_refused(function(), asked, "readable by numpy", caplog)


def test_a_model_in_half_precision_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    model = small.model(1).to(torch.bfloat16)
    data = small.examples()[0].to(torch.bfloat16), small.examples()[1]
    train = train_function(model, cross_entropy, data, NoDefense(), batch_size=4)
    assert_refused(train, message(weights()), "bfloat16", caplog)


@pytest.mark.parametrize(
    "config",
    [
        {"defense": "no-defense"},
        {"defense": "gradient-noise(scale=0.0)"},
        {"batch-size": 1, "local-steps": 9},
        {"seed": 0},
    ],
    ids=str,
)
def test_a_round_configuration_is_not_looked_at_without_limits(config: dict[str, Any]) -> None:
    train = function(local=LocalSteps(lr=0.1, steps=2))
    sent = train(message(weights(), **config), small.context(seed=3))
    local = LocalSteps(lr=0.1, steps=2)
    own = Client(0, *small.examples(), GradientNoise(0.1), batch_size=4, seed=3, local=local)
    assert_same(small.values_of(sent), own.reply(small.model(), cross_entropy).values)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"defense": "no-defense"}, "within this client's limits"),
        ({"defense": "gradient-noise(scale=0.05)"}, "within this client's limits"),
        ({"defense": "os:system(command='touch {0}')"}, "within this client's limits"),
        ({"defense": "optimal-noise(os:system(x='touch {0}'))"}, "within this client's limits"),
        ({"batch-size": 1}, "`batch-size = '1'`"),
        ({"local-steps": 1000}, "`local-steps = '1000'`"),
        ({"local-lr": 0.5}, "leave `local-lr`"),
        ({"seed": 0}, "leave `seed` to the client"),
        ({"scale": 0.0}, "leave `scale` to the client"),
    ],
    ids=str,
)
def test_a_round_configuration_outside_of_the_limits_is_refused(
    config: dict[str, Any], words: str, caplog: Any, tmp_path: Path
) -> None:
    victim = tmp_path / "x"
    filled = {k: v.format(victim) if isinstance(v, str) else v for k, v in config.items()}
    train = function(limits=LIMITS, local=LocalSteps(lr=0.1, steps=2))
    assert_refused(train, message(weights(), **filled), words, caplog)
    assert not victim.exists()


def test_a_round_configuration_within_the_limits_is_followed() -> None:
    train = function(limits=LIMITS, defense=OptimalNoise(0.1))
    config = {"defense": "gradient-noise(scale=0.7)", "batch-size": 5}
    sent = train(message(weights(), **config), small.context(seed=3))
    own = Client(0, *small.examples(), GradientNoise(0.7), batch_size=5, seed=3)
    assert_same(small.values_of(sent), own.reply(small.model(), cross_entropy).values)


def test_no_size_within_the_limits_leaves_fewer_examples_than_the_least() -> None:
    count = len(small.examples()[0])
    limits = Limits(batch_size=(2, count))
    for size in range(2, count + 1):
        train, context = function(limits=limits), small.context(seed=0)
        for _ in range(count):
            sent = train(message(weights(), **{"batch-size": size}), context)
            assert 2 <= next(iter(sent.content.metric_records.values()))["num-examples"] <= size
    few = tuple(part[:1] for part in small.examples())
    alone = train_function(small.model(1), cross_entropy, few, NoDefense(), limits=limits)
    assert alone(message(weights()), small.context(seed=0)).has_error()


def test_a_server_may_change_its_mind_about_a_cached_defense() -> None:
    limits = Limits(["optimal-noise(0.1, source=model-source())", "gradient-noise(0.1)"])
    train, context = function(limits=limits), small.context(seed=0)
    for asked in (
        "gradient-noise(0.1)",
        "optimal-noise(0.1, source=model-source())",
        "gradient-noise(0.2)",
    ) * 2:
        context = small.through_bytes(context)
        assert not train(message(weights(), defense=asked), context).has_error(), asked


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_reply_to_sends_finite_numbers_only(bad: float) -> None:
    with pytest.raises(ValueError, match="`values` should be finite"):
        reply_to(small.train_message(small.model()), {"w": torch.tensor([1.0, bad])}, 2)
    with pytest.raises(ValueError, match="Parameter `examples` should be an integer"):
        reply_to(small.train_message(small.model()), {"w": torch.ones(2)}, 0)


def test_a_broken_model_or_loss_is_an_error_on_the_client(caplog: Any) -> None:
    def constant(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.detach().sum()

    train = train_function(small.model(1), constant, small.examples(), GradientNoise(0.1))
    assert_refused(train, message(weights()), "the loss depends on no parameter", caplog)


class _Masked(nn.Module):
    """With a mask of infinities among its buffers, as attention has."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small.model(1)
        self.register_buffer("mask", torch.full((3,), -torch.inf).index_fill(0, torch.tensor(0), 0))
        self.register_buffer("calls", torch.tensor(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs) + torch.exp(self.mask)


def test_a_buffer_may_have_the_infinities_of_the_clients_own(caplog: Any) -> None:
    own = {name: value.numpy().copy() for name, value in _Masked().state_dict().items()}
    assert not function(_Masked())(message(own), small.context(seed=0)).has_error()
    for bad in ([0.0, np.inf, -np.inf], [-np.inf] * 3, [0.0, np.nan, -np.inf]):
        hostile = message({**own, "mask": np.array(bad, "f4")})
        assert_refused(function(_Masked()), hostile, "1 of 3 entries NaN or infinite", caplog)
