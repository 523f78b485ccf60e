"""Defended training of an audit: the rounds of `gradveil.federated.Server`, from one stream."""

from copy import deepcopy

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradveil import GradientNoise, NoDefense
from gradveil._random import numbered_stream
from gradveil.attacks import LocalSteps
from gradveil.auditing import make_subject
from gradveil.auditing._defaults import RATE
from gradveil.auditing._training import _train, client_batches
from tests.auditing.small import table, table_model


def subject(local):
    inputs, targets = table()
    public = {"public": (inputs[2:], targets[2:]), "normalization": None, "name": "table"}
    private = inputs[:2], targets[:2]
    return make_subject(table_model(), cross_entropy, private, batches=1, local=local, **public)


def by_hand(audited, defense, clients, steps, generator):
    """The mean of what clients send, into Adam or onto the weights."""
    model = deepcopy(audited.model)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    moved = type(audited)(**{**vars(audited), "model": model})
    for _ in range(steps):
        sent = [defense(moved.message(y), x, generator) for x, y in clients]
        mean = {name: torch.stack([s[name] for s in sent]).mean(0) for name in sent[0]}
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if audited.local:
                    parameter.add_(mean[name])
                else:
                    parameter.grad = mean[name]
        if not audited.local:
            optimizer.step()
    with torch.no_grad():
        losses = [float(cross_entropy(model(x), y)) for x, y in clients]
    return sum(losses) / len(losses)


@pytest.mark.parametrize("local", [None, LocalSteps(lr=0.1, steps=2)], ids=["gradient", "update"])
@pytest.mark.parametrize("defense", [NoDefense(), GradientNoise(0.1)], ids=["plain", "noise"])
def test_the_loss_is_that_of_the_rounds_by_hand(local, defense):
    audited = subject(local)
    clients = client_batches(audited)
    assert len(clients) == 4
    before = deepcopy(audited.model.state_dict())
    found = _train(audited, deepcopy(defense), clients, 5, numbered_stream(3))
    assert found == by_hand(audited, deepcopy(defense), clients, 5, numbered_stream(3))
    for name, value in audited.model.state_dict().items():
        assert torch.equal(value, before[name])
