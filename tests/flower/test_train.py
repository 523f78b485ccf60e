"""The client's train function: what it sends, what it keeps, and where its noise comes from."""

import io
import logging
from fractions import Fraction

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.common.serde import message_to_proto
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from gradveil import (
    Defense,
    GradientMessage,
    GradientNoise,
    NoDefense,
    OptimalNoise,
    PrivateNoise,
)
from gradveil.federated import Client, LocalSteps, ModelGuard
from gradveil.flower import reply_to, train_function
from gradveil.flower._client import load_client, save_client
from gradveil.shapes import ModelSource

from . import small

pytestmark = pytest.mark.usefixtures("global_rng_watch")
CACHED = OptimalNoise(scale=0.1, source=ModelSource(3))


def function(defense: Defense, **options):
    return train_function(
        small.model(1), cross_entropy, small.examples(), defense, batch_size=4, **options
    )


def client(defense: Defense, **options) -> Client:
    return Client(0, *small.examples(), defense, batch_size=4, seed=0, **options)


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_reply_holds_the_defended_values_and_the_number_of_examples_only():
    sent = function(OptimalNoise(scale=0.1))(
        small.train_message(small.model()), small.context(seed=0)
    )
    expected = client(OptimalNoise(scale=0.1)).reply(small.model(), cross_entropy)
    assert sorted(sent.content) == ["arrays", "metrics"]
    assert not sent.content.config_records
    assert dict(sent.content.metric_records["metrics"]) == {"num-examples": 4}
    assert_same(small.values_of(sent), expected.values)


def test_undefended_values_are_nowhere_in_the_bytes():
    def find(defense: Defense) -> bool:
        answer = function(defense)(small.train_message(small.model()), small.context(seed=0))
        sent = b"".join(a.data for a in answer.content.array_records["arrays"].values())
        chosen = client(defense).next_indices()
        inputs, targets = (part[chosen] for part in small.examples())
        plain = GradientMessage(small.model(), cross_entropy, targets).values(inputs)
        pairs = [value.flatten()[:2].numpy().tobytes() for value in plain.values()]
        return any(pair in sent for pair in pairs)

    assert find(NoDefense())
    assert not find(OptimalNoise(scale=0.1))


@pytest.mark.parametrize("defense", [OptimalNoise(scale=0.1), CACHED], ids=["noise", "cached"])
@pytest.mark.parametrize("local", [None, LocalSteps(lr=0.1, steps=2)], ids=["fedsgd", "fedavg"])
def test_every_message_in_a_new_process_gives_the_bytes_of_one_client(defense, local):
    """Seven messages: over the end of an epoch, and over two refreshes."""
    train, context = function(defense, local=local), small.context(seed=0)
    one = client(defense, local=local)
    for step in range(7):
        weights = small.model(step)
        context = small.through_bytes(context)
        sent = train(small.train_message(weights), context)
        expected = one.reply(weights, cross_entropy)
        assert_same(small.values_of(sent), expected.values)
        assert sent.content.metric_records["metrics"]["num-examples"] == expected.examples


def test_same_noise_only_with_the_nodes_own_seed():
    def sent(**settings):
        message = small.train_message(small.model(), seed=0)
        context = small.context(run={"seed": 0}, **settings)
        return small.values_of(function(GradientNoise(0.1))(message, context))["layers.1.bias"]

    assert torch.equal(sent(seed=3), sent(seed=3))
    assert not torch.equal(sent(seed=3), sent(seed=4))
    assert not torch.equal(sent(), sent()), "a seed in the message or the run is not listened to"


def test_state_holds_no_seed_of_the_noise_in_deployment():
    """The state of one node, copied to two processes, gives two different noises."""
    train, context = function(GradientNoise(0.1)), small.context()
    train(small.train_message(small.model()), context)
    first, second = (
        small.values_of(train(small.train_message(small.model()), small.through_bytes(context)))
        for _ in range(2)
    )
    assert not torch.equal(first["layers.1.bias"], second["layers.1.bias"])


def test_order_of_batches_continues_without_a_seed():
    """Undefended and unseeded, the batches of one epoch are all the data, each once."""
    train, context = function(NoDefense()), small.context()
    total = {}
    for _ in range(3):
        context = small.through_bytes(context)
        sent = train(small.train_message(small.model()), context)
        count = sent.content.metric_records["metrics"]["num-examples"]
        for name, value in small.values_of(sent).items():
            total[name] = total.get(name, 0) + value * count / 10
    inputs, targets = small.examples()
    whole = GradientMessage(small.model(), cross_entropy, targets).values(inputs)
    for name, value in whole.items():
        torch.testing.assert_close(total[name], value)


def test_failure_tells_the_server_nothing(caplog):
    inputs, targets = small.examples()
    inputs[3, 2] = float("nan")
    secret = "entries NaN or infinite"
    train = train_function(small.model(), cross_entropy, (inputs, targets), NoDefense())
    with caplog.at_level(logging.ERROR, "gradveil.flower"):
        answer = train(small.train_message(small.model()), small.context())
    assert answer.has_error()
    assert not answer.has_content()
    assert secret in caplog.text
    assert secret.encode() not in message_to_proto(answer).SerializeToString()
    assert answer.error.reason == "The client could not answer. Its own log tells why."


def test_failed_batch_counts_as_taken():
    """As in the local engine: the next message takes the next batch, not the failed one again."""

    def loss(outputs, targets):
        return cross_entropy(outputs, targets) * (float("nan") if broken else 1.0)

    train = train_function(small.model(), loss, small.examples(), NoDefense(), batch_size=4)
    context, one = small.context(seed=0), client(NoDefense())
    broken = True
    assert train(small.train_message(small.model()), context).has_error()
    broken = False
    sent = train(small.train_message(small.model()), context)
    one.load_state_dict({"root": 0, "step": 1, "defense": {}})
    assert_same(small.values_of(sent), one.reply(small.model(), cross_entropy).values)


def test_what_comes_from_the_context():
    def load(context):
        assert context.node_config["partition-id"] == 0
        return DataLoader(
            TensorDataset(*small.examples()), batch_size=3, generator=torch.Generator()
        )

    train = train_function(
        lambda context: small.model(1),
        cross_entropy,
        load,
        lambda context: GradientNoise(context.node_config["scale"]),
        batch_size=4,
    )
    sent = train(small.train_message(small.model()), small.context(seed=0, scale=0.1))
    expected = client(GradientNoise(0.1)).reply(small.model(), cross_entropy)
    assert_same(small.values_of(sent), expected.values)


def test_state_is_one_record_that_is_read_without_running_code():
    train, context = function(CACHED), small.context(seed=0)
    train(small.train_message(small.model()), context)
    kept = context.state.config_records["gradveil"]
    assert isinstance(kept, ConfigRecord)
    assert kept["step"] == 1
    assert torch.load(io.BytesIO(kept["defense"]), weights_only=True).keys() >= {"step"}
    assert not context.state.array_records


class Drifting(NoDefense):
    """A user's defense with a memory of all kinds of values."""

    def __init__(self):
        self._state = {"past": {}, "calls": [0, (0.5, None)], "halves": torch.zeros(2)}
        self._state["halves"] = self._state["halves"].bfloat16()

    def respond(self, message, inputs, generator=None):
        found, state = super().respond(message, inputs, generator), self._state
        sent = {n: v + state["past"].get(n, 0.0) for n, v in found.sent.items()}
        calls = state["calls"][0] + 1
        self._state = {"past": sent, "calls": [calls, (0.5, None)], "halves": state["halves"] + 1}
        return found._replace(sent=sent)

    def state_dict(self):
        return self._state

    def load_state_dict(self, state):
        self._state = state


def test_a_defense_with_a_memory_of_its_own_continues_in_a_new_process():
    train, context, one = function(Drifting()), small.context(seed=0), client(Drifting())
    for _ in range(4):
        sent = train(small.train_message(small.model()), context)
        assert_same(small.values_of(sent), one.reply(small.model(), cross_entropy).values)
    again = client(Drifting())
    load_client(again, context.state)
    found, expected = again.state_dict()["defense"], one.state_dict()["defense"]
    assert found["calls"] == expected["calls"] == [4, (0.5, None)]
    assert_same(found["past"], expected["past"])
    assert found["halves"].dtype == torch.bfloat16
    assert torch.equal(found["halves"], expected["halves"])


def test_a_round_with_another_defense_starts_its_memory_afresh():
    context = small.context(seed=0)
    for defense in (CACHED, NoDefense(), CACHED):
        answer = function(defense)(small.train_message(small.model()), context)
        assert not answer.has_error()
    again = client(CACHED)
    load_client(again, context.state)
    assert again.state_dict()["step"] == 3
    assert again.state_dict()["defense"]["step"] == 1


def test_a_state_that_runs_code_when_it_is_read_is_refused():
    one = client(Drifting())
    one.defense._state = {"when": Fraction(1, 2)}
    with pytest.raises(TypeError, match=r"should hold tensors, numbers, text.*Found"):
        save_client(one, RecordDict())


def test_reply_to_sends_bfloat16_and_numbers_alone_exactly():
    values = {"w": torch.tensor([0.5, 3.0], dtype=torch.bfloat16), "s": torch.tensor(0.25)}
    sent = small.values_of(reply_to(small.train_message(small.model()), values, 2))
    assert torch.equal(sent["w"], values["w"].float())
    assert torch.equal(sent["s"], values["s"])


NOTHING = torch.zeros(0), torch.zeros(0)
EMPTY = {
    "tensors": small.examples(0),
    "a loader without batches": [],
    "a loader of no examples": DataLoader(
        TensorDataset(*small.examples(0)), batch_size=4, generator=torch.Generator()
    ),
    "an empty batch": [small.examples(0)],
    "an empty batch of other numbers": [NOTHING],
    "a batch of nothing": [[], small.examples(0)],
}
WAYS = {
    "example": ({}, {}),
    "example, shuffled": ({}, {"sampling": "shuffle"}),
    "example, with a rate": ({}, {"sample_rate": 1.0}),
    "client": ({"unit": "client"}, {}),
    "client, local": ({"unit": "client"}, {"local": LocalSteps(0.1, 2)}),
}


@pytest.mark.parametrize("data", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_private_client_without_examples_answers_like_one_with_an_empty_one(data, way):
    noise, options = PrivateNoise(1.0, 1.0, **way[0]), way[1]
    sent = []
    for own, loss in ((data, cross_entropy), (small.examples(1), nothing)):
        train = train_function(small.model(), loss, own, noise, batch_size=4, **options)
        sent.append(train(small.train_message(small.model()), small.context(seed=5)))
    assert_same(*(small.values_of(message) for message in sent))
    told = [dict(message.content.metric_records["metrics"]) for message in sent]
    assert told == 2 * [{"num-examples": 4, "simulation": 1}]


def nothing(outputs, targets):
    return 0 * cross_entropy(outputs, targets)


def test_empty_batches_change_nothing_of_a_loader():
    """A Poisson sample of nobody among others: neither its types nor its place count."""
    batch = small.examples(3)
    sent = []
    for own in ([batch], [NOTHING, batch, [], small.examples(0)]):
        train = train_function(small.model(), cross_entropy, own, NoDefense(), batch_size=4)
        answer = train(small.train_message(small.model()), small.context(seed=5))
        sent.append(small.values_of(answer))
    assert_same(*sent)


def test_a_node_whose_sample_is_empty_answers_with_noise():
    """One example, hardly ever drawn: what is sent is the noise of a node without any."""
    sent = []
    for own in (small.examples(1), []):
        noise, options = PrivateNoise(1.0, 1.0), {"batch_size": 4, "sample_rate": 1e-9}
        train = train_function(small.model(), cross_entropy, own, noise, **options)
        answer = train(small.train_message(small.model()), small.context(seed=5))
        sent.append(small.values_of(answer))
    assert_same(*sent)


def test_a_guard_is_told_of_a_loader_without_batches(caplog):
    """It cannot make up examples of a shape that nobody knows."""
    noise, guard = PrivateNoise(1.0, 1.0), ModelGuard()
    for own, refused in (([], True), ([small.examples(0)], False)):
        train = train_function(small.model(), cross_entropy, own, noise, guard=guard)
        assert train(small.train_message(small.model()), small.context()).has_error() is refused
    assert "`data` should tell a guard the shape of an example" in caplog.text


@pytest.mark.parametrize("data", EMPTY.values(), ids=EMPTY)
def test_without_a_guarantee_a_client_without_examples_does_not_answer(data, caplog):
    train = train_function(small.model(), cross_entropy, data, OptimalNoise(0.1))
    assert train(small.train_message(small.model()), small.context()).has_error()
    assert "should have at least one example" in caplog.text
