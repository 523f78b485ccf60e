"""Every attack is an `Attack`: one call, one way to set it up."""

import pytest

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
    observe,
)

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
    attack = Analytic()
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
    assert isinstance(found, Reconstruction)
    assert found.inputs.shape == batch[0].shape


def test_cafe_says_which_observation_it_needs():
    observation = observed(two_linear_layers(), smooth_images(2, 1, 8, 8))
    with pytest.raises(
        TypeError, match=r"of type VerticalObservation. Found Observation.*CAFE.observe"
    ):
        CAFE()(observation, seeded())
