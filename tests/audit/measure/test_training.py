"""Defended training of an audit: a `FederatedRun` of its federation."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradveil import GradientNoise, NoDefense
from gradveil._random import named_stream
from gradveil.audit import Federation
from gradveil.audit.measure import Laboratory
from gradveil.audit.measure._training import make_pool, trained_model
from gradveil.messages import LocalSteps
from gradveil.shapes import Public
from tests.audit.small import make_subject, table, table_model


def subject(local):
    inputs, targets = table(40)
    public = {"public": (inputs[2:], targets[2:]), "name": "table"}
    return make_subject(
        table_model(), cross_entropy, (inputs[:2], targets[:2]), local=local, **public
    )


def by_hand(audited, defense, federation, seed):
    """The mean of what clients send, into Adam or onto the weights."""
    model = deepcopy(audited.model)
    optimizer = torch.optim.Adam(model.parameters(), lr=federation.lr)
    moved, size = replace(audited, model=model), audited.batch_size
    for number in range(federation.rounds):
        sent = []
        for place, (x, y) in enumerate(make_pool(audited, federation.clients).clients):
            epoch, position = divmod(number, len(x) // size)
            order = torch.randperm(len(x), generator=named_stream(seed, "batches", place, epoch))
            chosen = order[position * size :][:size]
            noise = named_stream(seed, "defense", place, number)
            sent.append(defense(moved.message(y[chosen]), x[chosen], noise))
        mean = {name: torch.stack([s[name] for s in sent]).mean(0) for name in sent[0]}
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if audited.local:
                    parameter.add_(mean[name])
                else:
                    parameter.grad = mean[name]
        if not audited.local:
            optimizer.step()
    return model


@pytest.mark.parametrize("local", [None, LocalSteps(lr=0.1, steps=2)], ids=["gradient", "update"])
@pytest.mark.parametrize("defense", [NoDefense(), GradientNoise(0.1)], ids=["plain", "noise"])
def test_the_weights_are_those_of_the_rounds_by_hand(local, defense):
    audited, federation = subject(local), Federation(rounds=5, local=local)
    assert len(make_pool(audited, federation.clients).clients) == 4
    before = deepcopy(audited.model.state_dict())
    found = trained_model(audited, deepcopy(defense), federation, 3, 5)
    expected = by_hand(audited, deepcopy(defense), federation, 3)
    for name, value in found.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name])
    for name, value in audited.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_share_of_the_clients_is_asked():
    audited = subject(None)
    every = trained_model(audited, NoDefense(), Federation(rounds=1), 0, 1)
    half = trained_model(audited, NoDefense(), Federation(rounds=1, fraction=0.5), 0, 1)
    pairs = zip(every.parameters(), half.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", ["optimal-noise(scale=0.1)", "optimal-pruning(ratio=0.5)"])
def test_a_defense_that_plans_from_public_examples_trains(name):
    """Each client has its own copy of what was planned; the audited defense stays as it is."""
    laboratory = Laboratory(subject(None), Federation(rounds=2))
    defense = laboratory.defense(name, training=True)
    assert isinstance(defense.source, Public)
    before = defense.state_dict()
    model = trained_model(laboratory.subject, defense, laboratory.federation, 0, 2)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    after = defense.state_dict()
    assert before["step"] == after["step"]
