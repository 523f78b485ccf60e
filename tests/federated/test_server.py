"""The server averages what it may average, and refuses the rest."""

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, NonFiniteError
from gradveil.federated import Reply, Server

from .small import assert_same, client, examples, model, server

pytestmark = pytest.mark.usefixtures("global_rng_watch")


def reply(value: float = 1.0, examples: int = 1, name: str = "w", shape: tuple = (2, 3)) -> Reply:
    return Reply({name: torch.full(shape, value)}, examples)


class Weights(nn.Module):
    """One matrix of zeros, which a server moves by minus the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, 3))


def mean_of(replies: object) -> Tensor:
    net = Weights()
    _, refused = Server(net, kind="update").step(replies)  # type: ignore[arg-type]
    assert refused == []
    return net.w.detach()


def test_the_mean_weighs_examples() -> None:
    mean = mean_of([(0, reply(1.0, 1)), (1, reply(5.0, 3))])
    torch.testing.assert_close(mean, torch.full((2, 3), 4.0))


def test_the_mean_does_not_depend_on_the_order_of_replies() -> None:
    generator = torch.Generator().manual_seed(0)
    replies = [(i, Reply({"w": torch.randn(2, 3, generator=generator)}, i + 1)) for i in range(7)]
    assert torch.equal(mean_of(replies), mean_of(reversed(replies)))


def test_the_mean_of_gradients_is_the_gradient_of_the_union() -> None:
    trained, (inputs, targets) = model(), examples(12)
    cuts = [(0, 5), (5, 6), (6, 12)]
    replies = [
        (i, Reply(GradientMessage(trained, cross_entropy, targets[a:b])(inputs[a:b]), b - a))
        for i, (a, b) in enumerate(cuts)
    ]
    union = GradientMessage(trained, cross_entropy, targets)(inputs)
    moving = model()
    Server(moving, torch.optim.SGD(moving.parameters(), lr=1.0)).step(replies)
    for name, parameter in moving.named_parameters():
        moved = dict(trained.named_parameters())[name] - parameter
        torch.testing.assert_close(moved, union[name], rtol=1e-5, atol=1e-6)


BAD = {
    "names": (reply(name="v"), r"missing names \['w'\] and unknown names \['v'\]"),
    "shapes": (reply(shape=(3, 2)), r"Found shape \(3, 2\) for `w` instead of \(2, 3\)"),
    "nan": (reply(float("nan")), "should be finite"),
    "infinity": (reply(float("inf")), "should be finite"),
    "no examples": (reply(examples=0), "`reply.examples` should be an integer of at least 1"),
    "negative examples": (reply(examples=-4), "`reply.examples` should be an integer"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_reply_does_not_count(name: str) -> None:
    bad, reason = BAD[name]
    counted, refused = Server(Weights(), kind="update").step([(0, reply()), (1, bad)])
    assert list(counted) == [0]
    assert [skip.client for skip in refused] == [1]
    assert re.search(reason, refused[0].reason)


def test_of_two_replies_of_one_client_the_first_counts() -> None:
    net = Weights()
    counted, refused = Server(net, kind="update").step([(3, reply(1.0)), (3, reply(2.0))])
    assert float(net.w.detach()[0, 0]) == 1.0
    assert len(counted) == len(refused) == 1
    assert "two replies of client 3" in refused[0].reason


def test_without_a_good_reply_all_stays() -> None:
    moving, before = server(), model().state_dict()
    assert moving.step([]) == ({}, [])
    assert_same(moving.model.state_dict(), before)
    assert not moving.optimizer.state


def test_fedavg_adds_the_mean_change() -> None:
    moving = server("update")
    before = {n: p.detach().clone() for n, p in moving.model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    changes = [
        {n: torch.randn(p.shape, generator=generator) for n, p in before.items()} for _ in range(2)
    ]
    moving.step([(i, Reply(change, 1 + 2 * i)) for i, change in enumerate(changes)])
    for name, parameter in moving.model.named_parameters():
        expected = before[name] + 0.25 * changes[0][name] + 0.75 * changes[1][name]
        torch.testing.assert_close(parameter.detach(), expected)


def test_frozen_parameters_and_buffers_stay() -> None:
    with torch.random.fork_rng(devices=[]):
        trained = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    trained[0].weight.requires_grad_(False)
    moving = Server(trained, torch.optim.Adam(trained.parameters(), lr=0.1))
    before = {n: t.clone() for n, t in trained.state_dict().items()}
    moving.step([(0, client().reply(trained, cross_entropy))])
    changed = {n for n, t in trained.state_dict().items() if not torch.equal(t, before[n])}
    assert changed == {"0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}
    assert all(p.grad is None for p in trained.parameters())


def test_weights_that_are_not_finite_are_an_error() -> None:
    trained = model()
    moving = Server(trained, torch.optim.SGD(trained.parameters(), lr=1e38))
    huge = Reply({n: torch.full_like(p, 1e38) for n, p in moving.parameters.items()}, 1)
    with pytest.raises(NonFiniteError, match="parameters after the step"):
        moving.step([(0, huge)])


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="Parameter `optimizer` should be given for FedSGD"):
        Server(model())
    with pytest.raises(ValueError, match="Parameter `kind` should be one of"):
        Server(model(), kind="fedprox")


def test_the_optimizer_should_be_the_models_own() -> None:
    trained, other = model(), model(1)
    with pytest.raises(ValueError, match=r"Parameter `optimizer`.*4 tensors that are not the mod"):
        Server(trained, torch.optim.Adam(other.parameters()))
    both = [*trained.parameters(), *other.parameters()]
    with pytest.raises(ValueError, match=r"4 tensors that are not the model's.*misses \[\]"):
        Server(trained, torch.optim.SGD(both, lr=0.1), "update")
    first = list(trained.parameters())[:1]
    missing = r"misses \['layers.1.bias', 'layers.3.weight', 'layers.3.bias'\]"
    with pytest.raises(ValueError, match=missing):
        Server(trained, torch.optim.Adam(first))
    for parameter in list(trained.parameters())[1:]:
        parameter.requires_grad_(False)
    assert Server(trained, torch.optim.Adam(first)).parameters.keys() == {"layers.1.weight"}
