"""Two objects have one description if and only if they are the same."""

import json
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import GaussianPrior, GradientNoise, OptimalNoise
from gradveil._fingerprint import digest
from gradveil.federated import FederatedRun, Server
from gradveil.federated._run import describe
from gradveil.sensitivity import Sketch
from gradveil.shapes import ModelSource

from .small import client, examples, model, run

FACTOR = 1.0


def scaled(factor):
    return lambda outputs, targets: factor * cross_entropy(outputs, targets)


class Scaled:
    def __init__(self, factor):
        self._factor = factor

    def loss(self, outputs, targets):
        return self._factor * cross_entropy(outputs, targets)


def prior(seed: int) -> GaussianPrior:
    return GaussianPrior.fit(examples(20, seed)[0])


def things() -> list[object]:
    return [
        GradientNoise(0.1),
        GradientNoise(0.2),
        OptimalNoise(0.1),
        OptimalNoise(0.1, estimator=Sketch(3)),
        OptimalNoise(target_error=0.1, prior=prior(0)),
        OptimalNoise(target_error=0.1, prior=prior(1)),
        OptimalNoise(0.1, source=ModelSource()),
        OptimalNoise(0.1, source=ModelSource(3)),
        cross_entropy,
        nn.functional.mse_loss,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 4.0])),
        partial(cross_entropy, label_smoothing=0.1),
        partial(cross_entropy, label_smoothing=0.2),
        partial(nn.functional.mse_loss),
        lambda outputs, targets: outputs.mean(),
        lambda outputs, targets: outputs.sum(),
        scaled(1),
        scaled(100),
        lambda outputs, targets, factor=1: factor * cross_entropy(outputs, targets),
        lambda outputs, targets, factor=100: factor * cross_entropy(outputs, targets),
        lambda outputs, targets, *, factor=1: factor * cross_entropy(outputs, targets),
        lambda outputs, targets, *, factor=100: factor * cross_entropy(outputs, targets),
        Scaled(1).loss,
        Scaled(100).loss,
        nn.Sequential(nn.ReLU()),
        nn.Sequential(nn.LeakyReLU()),
        nn.Sequential(nn.LeakyReLU()).eval(),
    ]


def test_descriptions_tell_apart_what_differs_and_nothing_else() -> None:
    texts = [json.dumps(describe(thing)) for thing in things()]
    assert len(set(texts)) == len(texts)
    assert texts == [json.dumps(describe(thing)) for thing in things()]


def test_a_loss_is_what_it_reads_of_its_module(monkeypatch) -> None:
    def loss(outputs, targets):
        return FACTOR * cross_entropy(outputs, targets)

    before = describe(loss)
    monkeypatch.setitem(globals(), "FACTOR", 100.0)
    assert describe(loss) != before


def test_functions_that_hold_themselves_or_nothing_yet_have_a_description() -> None:
    def again(depth):
        return later(depth) if depth else again(depth - 1)

    unset = describe(again)
    later = abs
    assert describe(again) not in (unset, describe(later))


def test_another_model_with_the_same_weights_is_another_run() -> None:
    prints = set()
    for activation in (nn.ReLU(), nn.LeakyReLU()):
        net = nn.Sequential(model(), activation)
        optimizer = torch.optim.Adam(net.parameters())
        prints.add(FederatedRun(Server(net, optimizer), [client()], cross_entropy).fingerprint)
    assert len(prints) == 2


def test_what_a_defense_remembers_is_no_part_of_it() -> None:
    cached = OptimalNoise(0.1, source=ModelSource(2))
    one = run(cached)
    before = describe(one.clients[0].defense)
    one.step()
    assert describe(one.clients[0].defense) == before


def test_a_digest_sees_type_shape_and_numbers() -> None:
    zero = torch.zeros(2, 3)
    changed = zero.clone()
    changed[1, 2] = -0.0
    others = [zero.double(), zero.reshape(3, 2), changed, torch.zeros(0), torch.tensor(0.0)]
    assert len({digest(tensor) for tensor in (zero, *others)}) == 6
    assert digest(zero.t().contiguous().t()) == digest(zero)
