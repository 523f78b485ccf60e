"""Every attack is an `Attack`: one call, one way to set it up."""

from dataclasses import dataclass

import pytest
import torch

from gradveil import NoDefense
from gradveil.attacks import (
    CAFE,
    DLG,
    IDLG,
    Adaptive,
    Analytic,
    Attack,
    ExactInversion,
    GradInversion,
    InvertingGradients,
    Peel,
    Reconstruction,
    ThreatModel,
    as_attack,
    observe,
)
from gradveil.attacks._attack import CallableAttack

from .small import LOSS, RANGE, observed, seeded, smooth_images
from .test_peel import two_linear_layers

WITH_STEPS = [
    InvertingGradients(), InvertingGradients.strong(), Adaptive(), DLG(), IDLG(), GradInversion(),
    Peel(), CAFE(),
]  # fmt: skip
ALL = [*WITH_STEPS, Analytic(), ExactInversion()]


def names(attack: Attack) -> str:
    return type(attack).__name__


@pytest.mark.parametrize("attack", ALL, ids=names)
def test_all_derive_from_one_base(attack):
    assert isinstance(attack, Attack)
    assert attack.knows_defense is isinstance(attack, Adaptive)
    assert as_attack(attack) is attack
    assert attack.work > 0
    assert attack.reports > 0


@pytest.mark.parametrize("attack", WITH_STEPS, ids=names)
def test_settings_reach_every_attack_that_has_them(attack):
    def tell(step: int, steps: int, cost: float) -> None: ...

    found = attack.configured(steps=7, time_budget=3.0, progress=tell)
    inner = found.unaware if isinstance(found, Adaptive) else found
    assert (inner.steps, found.time_budget, found.progress) == (7, 3.0, tell)
    assert inner.progress is tell
    assert type(found) is type(attack)


@pytest.mark.parametrize("attack", ALL, ids=names)
def test_nothing_asked_nothing_changed(attack):
    assert attack.configured() == attack


def test_a_time_budget_is_never_extended():
    attack = InvertingGradients(time_budget=1.0)
    assert attack.configured(time_budget=5.0).time_budget == 1.0
    assert attack.configured(time_budget=0.5).time_budget == 0.5
    assert Adaptive(time_budget=1.0).configured(time_budget=5.0).time_budget == 1.0


def test_an_attack_without_settings_stays_as_it_is():
    attack = Analytic(tolerance=0.1)
    assert attack.configured(steps=3, time_budget=1.0) is attack


@pytest.mark.parametrize(
    "attack",
    [
        InvertingGradients(2), InvertingGradients(2, peel=Peel(20, 5, 1)),
        Adaptive(InvertingGradients(2), finish=None),
        DLG(2, 1), IDLG(2, 1), GradInversion(2, seeds=1, rounds=1), Peel(20, 5, 1),
    ],
    ids=names,
)  # fmt: skip
def test_one_call_for_all(attack):
    batch = smooth_images(2, 1, 8, 8)
    observation = observe(
        two_linear_layers(), LOSS, batch, NoDefense(), threat=ThreatModel(mechanism="known"),
        num_classes=10, input_range=RANGE, generator=seeded(),
    )  # fmt: skip
    found = attack(observation, seeded())
    again = attack.many([observation], seeded())
    assert isinstance(found, Reconstruction)
    assert found.inputs.shape == batch[0].shape
    assert len(again) == 1
    assert torch.equal(again[0].inputs, found.inputs)


def test_cafe_says_which_observation_it_needs():
    observation = observed(two_linear_layers(), smooth_images(2, 1, 8, 8))
    with pytest.raises(
        TypeError, match=r"of type VerticalObservation. Found Observation.*observe_vertical"
    ):
        CAFE()(observation, seeded())


def blank(observation, generator=None):
    inputs = torch.zeros(observation.batch_size, *observation.input_shape)
    return Reconstruction(inputs, torch.zeros(observation.batch_size), 0.0)


@dataclass(frozen=True)
class Counting:
    """A callable of the user's with settings, that is no Attack."""

    steps: int = 10
    knows_defense = True

    def __call__(self, observation, generator=None):
        return blank(observation)


def test_a_plain_callable_is_an_attack_too():
    observation = observed(two_linear_layers(), smooth_images(2, 1, 8, 8), defense=NoDefense())
    attack = as_attack(blank)
    assert isinstance(attack, CallableAttack)
    assert not attack.knows_defense
    assert float(attack(observation, seeded()).inputs.abs().sum()) == 0
    counting = as_attack(Counting()).configured(steps=4)
    assert counting.function == Counting(4)
    assert counting.knows_defense
    assert counting.work == 4


@pytest.mark.parametrize("thing", ["strong", 3, InvertingGradients])
def test_what_cannot_be_called_on_an_observation_is_refused(thing):
    with pytest.raises(TypeError, match=r"`attack` should be a `gradveil.attacks.Attack`"):
        as_attack(thing)
