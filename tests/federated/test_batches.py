"""Poisson batches of private clients: their rate, and what a reply does not tell."""

import sys

import pytest
import torch
from scipy import stats
from torch.nn.functional import cross_entropy

from gradveil import GradientNoise, PrivateNoise
from gradveil._random import named_stream
from gradveil._secure import discrete_normal
from gradveil.federated import Client, LocalSteps, ModelGuard, NoReplyError
from gradveil.federated._client import Batches
from gradveil.messages import ClippedMessage, GradientMessage
from gradveil.privacy import SecureGenerator, poisson_sample

from .small import examples, model, server

NOISE = PrivateNoise(noise_multiplier=1.0, clip=0.5)


def client(count: int = 10, seed: int | None = 0, noise: PrivateNoise = NOISE, **options) -> Client:
    given = {"batch_size": 2, **options}
    return Client(0, *examples(count), noise, seed=seed, **given)


@pytest.mark.parametrize("seed", [0, None], ids=["seeded", "secure"])
def test_each_example_is_in_with_its_probability_independently(seed):
    """200 replies of 40 examples: counts are binomial, and neighbours do not go together."""
    asked = client(40, seed, batch_size=10)
    rows = torch.zeros(200, 40)
    for step, row in enumerate(rows):
        asked.load_state_dict({"root": seed or 1, "step": step, "defense": {}})
        row[asked.next_indices()] = 1
    assert stats.binomtest(int(rows.sum()), rows.numel(), 0.25).pvalue > 1e-6
    together = int((rows[:, ::2] * rows[:, 1::2]).sum())
    assert stats.binomtest(together, 200 * 20, 1 / 16).pvalue > 1e-6
    sizes = rows.sum(1)
    assert abs(float(sizes.var()) / (40 * 0.25 * 0.75) - 1) < 0.6  # of a fixed size it were 0


def test_a_peek_does_not_change_the_batch():
    asked = client(40, None)
    assert torch.equal(asked.next_indices(), asked.next_indices())


def test_a_reply_is_the_clipped_sum_over_a_fixed_number():
    """Reply t of a seeded client, written out: the sample, the sum over B = 2, the noise."""
    asked, net = client(), model()
    for step in range(6):
        generator = _stream("batches", step)
        chosen = poisson_sample(10, 0.2, generator)
        inputs, targets = (part[chosen] for part in examples(10))
        gradient = GradientMessage(net, cross_entropy, targets)
        clipped = ClippedMessage(gradient, 0.5, batch_size=2, grid=1.0)
        values, noise = clipped.values(inputs), _stream("defense", step)
        reply = asked.reply(net, cross_entropy)
        assert reply.examples == 2
        for name, value in values.items():
            drawn = discrete_normal(value.numel(), 20, noise).view(value.shape) * 2.0**-20
            torch.testing.assert_close(reply.values[name], (value + 0.25 * drawn).float())


def test_empty_batches_are_answered_like_others():
    asked = client(10, sample_rate=0.001)
    reply, costs = asked.reply_with_costs(model(), cross_entropy)
    assert (reply.examples, costs.loss) == (2, None)
    assert all(bool(value.any()) for value in reply.values.values())
    assert server().step([(0, reply)])[1] == []


def test_replies_tell_the_same_number_whatever_was_drawn():
    asked = client(10)
    sizes = set()
    for _ in range(20):
        sizes.add(len(asked.next_indices()))
        assert asked.reply(model(), cross_entropy).examples == 2
    assert len(sizes) > 2


def test_the_rate_and_the_expected_size():
    assert client(10).batches.rate == 0.2
    assert client(10, batch_size=16).batches.rate == 1.0
    own = client(10, noise=PrivateNoise(1.0, 0.5, batch_size=5), sample_rate=0.3)
    assert (own.batches.rate, own.defense.batch_size) == (0.3, 5)
    assert own.reply(model(), cross_entropy).examples == 5


@pytest.mark.parametrize("options", [{}, {"batch_size": 16}, {"sample_rate": 0.3}])
def test_one_example_more_changes_neither_the_divisor_nor_what_is_told(options):
    """It would tell the number of examples, and so whether one was added: at any noise."""
    for count in range(1, 24):
        asked = client(count, **options)
        size = options.get("batch_size", 2)
        assert asked.defense.batch_size == size
        assert asked.reply(model(), cross_entropy).examples == size


def test_the_relation_that_an_account_can_have():
    assert Batches(10, 2, "poisson", 0.2).neighbours == "add-remove"
    assert Batches(10, 2, "poisson").neighbours == "zero-out"
    assert Batches(10, 20, "poisson").neighbours == "zero-out"
    assert Batches(10, 2).neighbours == "replace-one"


UNITS = {
    "example": {},
    "example, shuffled": {"sampling": "shuffle"},
    "client": {"noise": PrivateNoise(1.0, 0.5, unit="client"), "local": LocalSteps(0.1, 2)},
    "gradient of a client": {"noise": PrivateNoise(1.0, 0.5, unit="client")},
}


@pytest.mark.parametrize("options", UNITS.values(), ids=UNITS)
def test_a_client_without_examples_is_like_one_with_an_empty_one(options):
    """The same noise to the last bit, in all that is told."""
    none, empty = client(0, **options), client(1, **options)
    for _ in range(3):
        nothing, costs = none.reply_with_costs(model(), cross_entropy)
        zeroed = empty.reply(model(), lambda outputs, targets: 0 * cross_entropy(outputs, targets))
        assert (nothing.examples, costs.loss) == (zeroed.examples, None)
        assert nothing.values.keys() == zeroed.values.keys()
        for name, value in zeroed.values.items():
            assert bool(value.any())
            torch.testing.assert_close(nothing.values[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("options", UNITS.values(), ids=UNITS)
def test_a_client_without_examples_looks_at_the_model_as_well(options):
    asked = client(0, guard=ModelGuard(), **options)
    assert asked.reply(model(), cross_entropy).examples == 2


def test_to_have_fewer_examples_than_a_reply_takes_is_not_told_of_a_client():
    noise = PrivateNoise(1.0, 0.5, unit="client")
    few, none = (client(n, noise=noise, least=3).reply(model(), cross_entropy) for n in (2, 0))
    assert few.examples == none.examples == 2
    assert all(torch.equal(value, none.values[name]) for name, value in few.values.items())


def test_a_short_rest_of_an_epoch_is_left_out():
    batches = Batches(10, 4, least=3)
    drawn = [batches.draw(0, 0, step, secure=False) for step in range(4)]
    assert [len(indices) for indices in drawn] == [4, 4, 4, 4]
    assert len(torch.cat(drawn[:2]).unique()) == 8
    assert len(Batches(10, 4, least=2).draw(0, 0, 2, secure=False)) == 2
    with pytest.raises(NoReplyError, match="at least 11 examples"):
        client(noise=GradientNoise(0.1), least=11).next_indices()


def test_an_update_clipped_as_a_whole_tells_no_number_either():
    noise = PrivateNoise(1.0, 0.5, unit="client")
    asked = client(3, noise=noise, local=LocalSteps(0.1, 2))
    assert asked.batches.sampling == "shuffle"
    replies = [asked.reply(model(), cross_entropy) for _ in range(4)]
    assert [reply.examples for reply in replies] == [2, 2, 2, 2]  # the batches have 2, 1, 2, 1


def test_noise_without_a_seed_is_secure(monkeypatch):
    assert isinstance(client(seed=None)._generator(), SecureGenerator)
    assert isinstance(client(seed=0, secure=True)._generator(), SecureGenerator)
    assert type(client(seed=0)._generator()) is torch.Generator
    monkeypatch.setitem(sys.modules, "cryptography", None)
    plain = Client(0, *examples(10), GradientNoise(0.1), batch_size=2, seed=None)
    assert type(plain._generator()) is torch.Generator
    with pytest.raises(ModuleNotFoundError, match=r"gradveil\[privacy\]"):
        client(seed=None).reply(model(), cross_entropy)
    with pytest.raises(ModuleNotFoundError, match=r"gradveil\[privacy\]"):
        NOISE(GradientMessage(model(), cross_entropy, examples(4)[1]), examples(4)[0])
    with pytest.raises(ModuleNotFoundError, match=r"gradveil\[privacy\]"):
        NOISE.backward(model(), cross_entropy, *examples(4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": "shuffle", "sample_rate": 0.1}, "`sample_rate` should be left out"),
        ({"sample_rate": 1.5}, r"`sample_rate` should be in \(0, 1\]"),
        ({"sampling": "bernoulli"}, "Parameter `sampling` should be"),
        ({"noise": GradientNoise(0.1), "sampling": "poisson"}, "a Poisson sample may be empty"),
        ({"batch_size": 0}, "Parameter `batch_size`"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        client(**options)


def _stream(name: str, step: int) -> torch.Generator:
    return named_stream(0, name, 0, step)
