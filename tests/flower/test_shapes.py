"""The plan's shape on Flower: sent by the strategy, checked and used by the client."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from torch import Tensor
from torch.nn.functional import cross_entropy

from gradveil import FromServer, GradientNoise, OptimalNoise
from gradveil.federated import PackedShape, Planner
from gradveil.flower import FedSGD, train_function
from gradveil.flower._client import SHAPE, read_shape, shape_record
from gradveil.messages import trainable_parameters
from gradveil.shapes import Request, Shape

from . import small
from .test_hostile_server import assert_refused

pytestmark = pytest.mark.usefixtures("global_rng_watch")
SERVED = OptimalNoise(0.1, source=FromServer())


def packed() -> PackedShape:
    return Planner(small.examples(8, seed=3), cross_entropy, batch_size=4).plan(1, small.model())


def function(defense: Any = SERVED) -> Any:
    return train_function(small.model(1), cross_entropy, small.examples(), defense, batch_size=4)


def asked(shape: PackedShape | None) -> Message:
    message = small.train_message(small.model())
    if shape is not None:
        message.content[SHAPE] = shape_record(shape)
    return message


def with_record(**changed: np.ndarray | None) -> Message:
    message = asked(packed())
    parts = {name: array.numpy() for name, array in message.content.array_records[SHAPE].items()}
    parts = {name: value for name, value in {**parts, **changed}.items() if value is not None}
    message.content[SHAPE] = ArrayRecord({name: Array(value) for name, value in parts.items()})
    return message


def noise(message: Message, defense: Any = SERVED, context: Any = None) -> dict[str, Tensor]:
    """What was sent beyond the plain gradient, over draws that have no seed but the node's."""
    context = small.context(seed=5) if context is None else context
    sent = small.values_of(function(defense)(message, context))
    plain = small.values_of(function(OptimalNoise(0.0))(asked(None), small.context(seed=5)))
    return {name: sent[name] - plain[name] for name in sent}


def test_a_shape_goes_through_a_message_unchanged() -> None:
    shape = read_shape(asked(packed()))
    assert shape is not None
    for name, parts in packed().shape.factors.items():
        assert all(map(torch.equal, parts, shape.factors[name]))
    assert read_shape(asked(None)) is None


def test_the_record_is_hardly_larger_than_the_shape() -> None:
    record = asked(packed()).content.array_records[SHAPE]
    assert record.count_bytes() < packed().size + 600


def test_the_client_draws_its_noise_in_the_shape() -> None:
    """The same seed: the ratio of the noises with and without a shape is that of the levels."""
    flat, shaped = noise(asked(None)), noise(asked(packed()))
    source = FromServer()
    source.use(packed().shape)
    like = trainable_parameters(small.model())
    defense = OptimalNoise(0.1, source=source)
    nothing: Any = None
    request = Request(defense.needs, like, nothing, torch.zeros(1), nothing)
    levels = defense.made(source.given(request)).std
    for name in like:
        torch.testing.assert_close(
            shaped[name], flat[name] * levels[name] / 0.1, rtol=1e-3, atol=1e-5
        )


def test_other_defenses_do_not_look_at_it() -> None:
    broken = with_record(means=np.full(1, np.nan, "f4"))
    with_shape = function(GradientNoise(0.1))(broken, small.context(seed=5))
    without = function(GradientNoise(0.1))(asked(None), small.context(seed=5))
    for name, value in small.values_of(without).items():
        assert torch.equal(value, small.values_of(with_shape)[name])


def test_the_last_shape_stays_where_a_message_has_none() -> None:
    context = small.context(seed=5)
    train = function()
    train(asked(packed()), context)
    context = small.through_bytes(context)
    sent = small.values_of(train(asked(None), context))
    twin = small.context(seed=5)
    train(asked(packed()), twin)
    again = small.values_of(train(asked(packed()), twin))
    assert all(torch.equal(sent[name], again[name]) for name in sent)


def renamed() -> np.ndarray:
    return np.frombuffer(packed().layout.replace("layers", "others").encode(), "u1").copy()


HOSTILE = {
    "NaN": ({"means": np.full(len(packed().means), np.nan, "f4")}, "finite and above 0"),
    "zero": ({"means": np.zeros(len(packed().means), "f4")}, "finite and above 0"),
    "infinite": ({"means": np.full(len(packed().means), np.inf, "f4")}, "finite and above 0"),
    "too few": ({"means": np.ones(1, "f4")}, "means"),
    "codes": ({"codes": np.zeros(3, "u1")}, "codes"),
    "types": ({"codes": np.zeros(3, "f8")}, "uint8"),
    "names": ({"layout": renamed()}, "A shape should have the parameters"),
    "text": ({"layout": np.frombuffer(b"\xff\xfe", "u1").copy()}, "decode"),
    "words": ({"layout": np.array(["x"])}, "readable by numpy"),
    "missing": ({"codes": None}, "should hold ['codes', 'layout', 'means']"),
    "more": ({"seed": np.zeros(1)}, "should hold ['codes', 'layout', 'means']"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_bad_shapes_are_refused_and_the_server_is_not_told_why(case: str, caplog: Any) -> None:
    changed, words = HOSTILE[case]
    assert_refused(function(), with_record(**changed), words, caplog, seed=0)


def test_a_shape_of_another_model_is_refused(caplog: Any) -> None:
    factors = {n: (torch.ones(7, 7),) for n in trainable_parameters(small.model())}
    other = PackedShape.of(Shape(factors))
    assert_refused(function(), asked(other), "should broadcast to", caplog, seed=0)


def test_no_shape_takes_a_client_below_its_floor() -> None:
    """All of the noise on one bias: the first layer still has a twentieth of the scale."""
    like = trainable_parameters(small.model())
    factors = {n: (torch.full((1,) * v.dim(), 1e-30),) for n, v in like.items()}
    factors["layers.3.bias"] = (torch.full((1,), 1e30),)
    hostile = PackedShape.of(Shape(factors))
    draws = [noise(asked(hostile), context=small.context(seed=s)) for s in range(1)]
    first = torch.cat([d["layers.1.weight"].flatten() for d in draws])
    assert float(first.square().mean().sqrt()) > 0.1 * 0.05 * 0.7


def test_the_strategy_plans_once_a_round_and_asks_all_with_the_same_shape() -> None:
    calls: list[int] = []

    class Counting(Planner):
        def plan(self, number: int, model: Any) -> PackedShape:
            calls.append(number)
            return super().plan(number, model)

    net = small.model()
    planner = Counting(small.examples(8, seed=3), cross_entropy, batch_size=4)
    strategy = FedSGD(net, torch.optim.Adam(net.parameters()), planner=planner)
    train, seen = function(), []

    def app(message: Message, context: Any) -> Message:
        seen.append(message.content.array_records[SHAPE])
        return train(message, context)

    nodes = {i: small.context(i, seed=i) for i in range(4)}
    strategy.start(grid=small.LocalGrid(app, nodes), num_rounds=3)
    assert calls == [1, 2, 3]
    assert len(seen) == 12
    assert [len(replies.clients) for replies in strategy.rounds] == [4, 4, 4]
    assert strategy.rounds[-1].shape_bytes == planner.plan(3, net).size


def test_a_server_without_a_planner_sends_no_shape() -> None:
    net = small.model()
    strategy = FedSGD(net, torch.optim.Adam(net.parameters()))
    names: list[list[str]] = []
    train = function()

    def app(message: Message, context: Any) -> Message:
        names.append(sorted(message.content))
        return train(message, context)

    nodes = {i: small.context(i) for i in range(2)}
    strategy.start(grid=small.LocalGrid(app, nodes), num_rounds=1)
    assert names == [["arrays", "config"]] * 2
