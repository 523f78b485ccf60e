from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import GradientNoise, OptimalNoise
from gradveil.attacks import (
    Adaptive,
    InvertingGradients,
    Observation,
    PlanReader,
    ThreatModel,
    _adaptive,
    observe,
)
from gradveil.models import MLP

from .planned import DATA, correlation, generator, gradient_size, observed, seeded

QUICK = PlanReader(steps=60, polish=3)


def perceptron() -> nn.Module:
    return seeded(lambda: MLP([784, 64, 10], activation="leaky_relu"))


def convolutions() -> nn.Module:
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.LeakyReLU(),
            nn.Flatten(),
            nn.Linear(8 * 14 * 14, 32),
            nn.LeakyReLU(),
            nn.Linear(32, 10),
        )
    )


def error(inputs: torch.Tensor, number: int) -> float:
    return float((inputs - DATA.inputs[number]).square().mean())


@pytest.mark.parametrize("least", [0.25, 0.0])
def test_a_perceptron_shows_the_image_at_a_thousand_times_the_gradient(least):
    model, errors = perceptron(), []
    for number in range(3):
        scale = 1000 * gradient_size(model, DATA.batch(number, 1))
        defense = OptimalNoise(scale, least=least, source="private")
        errors.append(error(QUICK(observed(model, number, defense), generator()).inputs, number))
    assert sum(errors) / len(errors) < 0.15


def test_the_same_noise_on_every_entry_shows_nothing():
    model = perceptron()
    scale = 1000 * gradient_size(model, DATA.batch(0, 1))
    for defense in (GradientNoise(scale), OptimalNoise(scale)):
        found = QUICK(observed(model, 0, defense), generator()).inputs
        assert abs(correlation(found, DATA.inputs[0])) < 0.15
        assert error(found, 0) > 0.5


def test_an_attacker_who_takes_isotropic_noise_for_a_plan_sees_nothing():
    model = perceptron()
    private = observed(model, 0, OptimalNoise(20.0, source="private"))
    isotropic = replace(private, sent=observed(model, 0, GradientNoise(20.0)).sent)
    assert correlation(QUICK(private, generator()).inputs, DATA.inputs[0]) > 0.9
    assert correlation(QUICK(isotropic, generator()).inputs, DATA.inputs[0]) < 0.15


@pytest.mark.slow
def test_features_are_inverted():
    """In the mean: single images have 0 to 0.6, by the last bits of the machine's arithmetic."""
    shown = []
    for number in range(4):
        observation = observed(convolutions(), number, OptimalNoise(20.0, source="private"))
        found = PlanReader(steps=300, polish=1)(observation, generator()).inputs
        shown.append(correlation(found, DATA.inputs[number]))
    assert sum(shown) / len(shown) > 0.2


def test_adaptive_takes_what_the_levels_show_where_noise_hides_the_message(monkeypatch):
    model = perceptron()
    unaware = InvertingGradients(steps=5)
    quick = Adaptive(unaware, finish=None, restarts=1)
    hidden = observed(model, 0, OptimalNoise(20.0, source="private"))
    assert error(quick(hidden, generator()).inputs, 0) < 0.15
    monkeypatch.setattr(_adaptive, "plan_can_be_read", lambda _: False)
    assert error(quick(hidden, generator()).inputs, 0) > 0.5


@pytest.mark.parametrize("defense", [GradientNoise(20.0), OptimalNoise(20.0), GradientNoise(1e-5)])
def test_adaptive_is_as_it_was_where_there_is_no_plan_to_read(defense, monkeypatch):
    observation = observed(perceptron(), 0, defense)
    quick = Adaptive(InvertingGradients(steps=3), finish=None)
    found = quick(observation, generator()).inputs
    monkeypatch.setattr(_adaptive, "plan_can_be_read", lambda _: False)
    assert torch.equal(found, quick(observation, generator()).inputs)


def test_it_uses_nothing_but_the_observation():
    model = perceptron()
    seen = observed(model, 0, OptimalNoise(20.0, source="private"))
    by_hand = Observation(
        model, cross_entropy, {n: v.clone() for n, v in seen.sent.items()}, 1, (1, 28, 28), 10,
        *DATA.range, labels=DATA.targets[:1].clone(), defense=seen.defense,
    )  # fmt: skip
    first, second = (QUICK(observation, generator()).inputs for observation in (seen, by_hand))
    assert torch.equal(first, second)


def test_batches_tables_and_unknown_ranges_run():
    private = OptimalNoise(1.0, source="private")
    batch = QUICK(observed(perceptron(), 0, private, size=2), generator())
    assert batch.inputs.shape == (2, 1, 28, 28)
    table = observe(
        seeded(lambda: MLP([12, 16, 3])), cross_entropy,
        (torch.randn(1, 12, generator=generator()), torch.tensor([1])), private,
        threat=ThreatModel(mechanism="known", labels="unknown"), num_classes=3,
        generator=generator(),
    )  # fmt: skip
    assert QUICK(table, generator()).inputs.isfinite().all()


def test_the_time_budget_is_kept():
    observation = observed(perceptron(), 0, OptimalNoise(1.0, source="private"))
    assert PlanReader(polish=10_000, time_budget=0.5)(observation).status == "time budget"


def test_it_needs_the_defense():
    observation = observed(perceptron(), 0, OptimalNoise(1.0, source="private"))
    with pytest.raises(ValueError, match="defense or the mechanism"):
        QUICK(replace(observation, defense=None))
