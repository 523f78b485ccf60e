"""The cost of a defense: an identical job costs 1.00, whatever the machine does meanwhile."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import Defended, Defense, NoDefense
from gradveil.attacks import InvertingGradients
from gradveil.audit import AuditResult, write_results
from gradveil.audit.measure import Laboratory
from gradveil.audit.measure._bounds import TIMINGS, _time_ratio, measure_defense

from ..small import attacks, make_subject, small_audit, table, table_model

SPEEDS = {
    "steady": lambda n: 1.0,
    "warming up": lambda n: 1.0 + 2.0 * 0.7**n,
    "ever faster": lambda n: 1.0 / (1.0 + 0.02 * n),
    "ever slower": lambda n: 1.0 + 0.02 * n,
    "throttled halfway": lambda n: 1.0 if n < 10 else 1.3,
    "now and then interrupted": lambda n: 4.0 if n % 7 == 3 else 1.0,
}


class Ticking(nn.Linear):
    """A layer whose forward pass takes what `speed` says, by a clock of its own."""

    def __init__(self, speed) -> None:
        super().__init__(3, 2)
        self.speed, self.now, self.passes = speed, 0.0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.now += self.speed(self.passes)
        self.passes += 1
        return super().forward(x)


def subject_of(model: nn.Module):
    private = torch.ones(2, 3), torch.tensor([0, 1])
    options = {"public": None, "normalization": None, "local": None, "name": "data"}
    return make_subject(model, cross_entropy, private, batches=1, **options)


@pytest.mark.parametrize("speed", SPEEDS.values(), ids=SPEEDS)
def test_no_defense_costs_what_a_plain_message_costs(speed, monkeypatch):
    model = Ticking(lambda n: 1.0)
    subject = subject_of(model)
    model.speed, model.passes = speed, 0
    monkeypatch.setattr("gradveil._timing.time.perf_counter", lambda: model.now)
    assert _time_ratio(subject, NoDefense()) == pytest.approx(1.0, abs=0.05)
    assert model.passes == 2 * (1 + TIMINGS)


def test_a_defense_that_takes_twice_as_long_costs_2(monkeypatch):
    class Twice(NoDefense):
        def respond(self, message, inputs, generator=None):
            super().respond(message, inputs, generator)
            return super().respond(message, inputs, generator)

    model = Ticking(lambda n: 1.0)
    monkeypatch.setattr("gradveil._timing.time.perf_counter", lambda: model.now)
    assert _time_ratio(subject_of(model), Twice()) == 2.0


class Sign(Defense):
    """Sends signs: a response of its own, without a mechanism."""

    def respond(self, message, inputs, generator=None):
        values = message(inputs)
        return Defended(values, None, {name: value.sign() for name, value in values.items()})


def test_a_defense_without_a_mechanism_has_no_utility_no_bound_and_no_layers():
    found = measure_defense(Laboratory(subject_of(nn.Linear(3, 2))), Sign())
    assert (found.utility_first, found.utility_second) == (None, None)
    assert found.bound is None
    assert found.layers == ()
    assert found.bytes_sent > 0


def test_an_audit_attacks_what_a_response_of_its_own_sends(monkeypatch, tmp_path):
    seen, attack = [], InvertingGradients.__call__
    monkeypatch.setattr(
        InvertingGradients, "__call__", lambda self, o, g: (seen.append(o), attack(self, o, g))[1]
    )
    result = small_audit(table(), table_model(), defenses=[Sign()], attacks=attacks()[:1])
    assert all(set(v.unique().tolist()) <= {-1.0, 0.0, 1.0} for v in seen[-1].sent.values())
    assert result.defenses[1].name == "sign"
    assert AuditResult.from_json(result.to_json()) == result
    assert write_results(result, tmp_path).exists()
