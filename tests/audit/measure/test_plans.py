"""Public moments that are shared in an audit are those that each defense measures by itself."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, Moments, OptimalNoise, OptimalPruning, Public
from gradveil._random import numbered_stream
from gradveil.audit import Settings
from gradveil.audit.measure import Laboratory
from tests.audit.small import make_subject, table, table_model

DEFENSES = [
    OptimalNoise(0.1),
    OptimalPruning(0.5),
    OptimalNoise(0.1, estimator="sketch"),
    OptimalNoise(target_error=0.1),
]


@pytest.fixture
def made(monkeypatch):
    """Which defenses measured moments."""
    measured, measure = [], Public._made

    def counted(self, *given):
        measured.append(self)
        return measure(self, *given)

    monkeypatch.setattr(Public, "_made", counted)
    return measured


def audited():
    inputs, targets = table(40)
    public = {"public": (inputs[2:], targets[2:]), "normalization": None, "name": "table"}
    private = inputs[:2], targets[:2]
    return make_subject(table_model(), cross_entropy, private, batches=1, local=None, **public)


def laboratory(subject):
    return Laboratory(subject, settings=Settings(seed=3))


def test_each_defense_gets_the_moments_that_it_would_measure_itself(made):
    subject = audited()
    plans, (inputs, targets) = laboratory(subject), subject.batch(0)
    like = dict(subject.model.named_parameters())
    private = Moments.of_values({n: p.detach() for n, p in like.items()}, 1)
    message = subject.message(targets)
    for defense in DEFENSES:
        shared, alone = (
            each.planned(defense).given(private, message, inputs, numbered_stream(3)).moments
            for each in (plans, laboratory(subject))
        )
        for name in ("squared_values", "squared_sensitivities", "squared_example_values"):
            expected = getattr(alone, name)
            assert (getattr(shared, name) is None) == (expected is None)
            for key, value in (expected or {}).items():
                assert torch.equal(getattr(shared, name)[key], value)
    assert len(made) == 3 + len(DEFENSES)  # the second has the needs of the first
    made.clear()
    for defense in DEFENSES:
        plans.planned(defense)
    assert not made


def test_one_plan_serves_all_clients_of_a_round(made):
    subject = audited()
    inputs, targets = subject.batch(0)
    message = GradientMessage(subject.model, cross_entropy, targets)
    defense = laboratory(subject).planned(OptimalNoise(0.1), refresh_every=30)
    assert len(made) == 1
    generator, plans = numbered_stream(0), []
    for call in range(61):
        defense(message, inputs, generator)
        if len(made) > 1 + len(plans):
            plans.append(call)
    assert plans == [30, 60]
