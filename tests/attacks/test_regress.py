"""Regression finds what the message tells of smooth images, and is a start for a descent."""

import time

import pytest
import torch
from torch import nn

from gradveil.attacks import InvertingGradients, Observation, Regress
from gradveil.attacks._attack import TIME_BUDGET
from gradveil.attacks._regress import WIDTH, sketch_of

from .small import observed, seeded, smooth_images


def deep_net() -> nn.Module:
    """Its signal shrinks from layer to layer: messages of all images are nearly the same."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 8), (8, 8), (8, 8)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.LeakyReLU()]
        return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)).eval()


def normalised_net() -> nn.Module:
    """BatchNorm in training mode, layer after layer: messages hardly tell of single images."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 8), (8, 8), (8, 8), (8, 8)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)]
            layers += [nn.LeakyReLU()]
        return nn.Sequential(*layers, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(32, 10)).train()


def seen(count: int = 2, seed: int = 0, **changes: object) -> tuple[torch.Tensor, Observation]:
    batch = smooth_images(count, 1, 8, 8, seed=seed)
    labels = torch.arange(count)
    return batch[0], observed(deep_net(), (batch[0], labels), labels="known", **changes)


def test_it_is_nearer_than_the_middle_of_the_range():
    errors, blind = [], []
    for seed in range(2):
        truth, observation = seen(seed=seed)
        found = Regress(120)(observation, seeded())
        assert found.inputs.min() >= 0
        assert found.inputs.max() <= 1
        errors.append(float((found.inputs - truth).square().mean()))
        blind.append(float((0.5 - truth).square().mean()))
    assert sum(errors) < 0.6 * sum(blind)


def test_the_same_generator_gives_the_same_estimate():
    observation = seen()[1]
    one, other = (Regress(20)(observation, seeded()).inputs for _ in range(2))
    assert torch.equal(one, other)


def test_without_time_it_makes_do_with_few_samples():
    made: list[int] = []
    attack = Regress(100, time_budget=0.0, progress=lambda *told: made.append(told[0]))
    assert attack(seen()[1], seeded()).status == "time budget"
    assert made[-1] == 16


def test_large_tensors_are_sketched_so_that_products_stay_the_same_in_the_mean():
    one, other = torch.randn(2, 3 * WIDTH, generator=seeded())
    other = one + other
    products = []
    for seed in range(30):
        sketch = sketch_of({"weight": one}, seeded(seed))
        products.append(float((sketch("weight", one) * sketch("weight", other)).sum()))
    mean, exact = sum(products) / 30, float((one * other).sum())
    assert mean == pytest.approx(exact, rel=0.02)
    assert mean != pytest.approx(exact * 2 / 3, rel=0.02)


@pytest.mark.parametrize("restarts", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_descent_from_it_is_nearer_than_one_from_noise(restarts):
    gains = []
    for seed in range(2):
        truth, observation = seen(seed=seed)
        with_it, without = (
            InvertingGradients(40, total_variation=1e-4, regress=r, restarts=restarts)
            for r in (Regress(), None)
        )
        errors = [
            float((attack(observation, seeded()).inputs - truth).square().mean())
            for attack in (with_it, without)
        ]
        gains.append(errors[1] / errors[0])
    assert sum(gains) / 2 > 1.2


def test_where_the_samples_teach_nothing_their_mean_is_a_better_start_than_noise():
    truth, labels = smooth_images(4, 1, 8, 8)[0], torch.arange(4)
    observation = observed(normalised_net(), (truth, labels), labels="known")
    with_it, without = (
        InvertingGradients(20, total_variation=1e-2, regress=r)(observation, seeded()).inputs
        for r in (Regress(16), None)
    )
    errors = [float((inputs - truth).square().mean()) for inputs in (with_it, without)]
    assert errors[0] < 0.7 * errors[1]


def test_inputs_that_are_no_images_are_estimated_too():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 10)).eval()
    truth = torch.randn(2, 6, generator=seeded()).sigmoid()
    observation = observed(model, (truth, torch.tensor([1, 2])), labels="known")
    found = Regress(100)(observation, seeded())
    assert float((found.inputs - truth).square().mean()) < float((0.5 - truth).square().mean())


def test_each_start_has_its_part_of_a_time_budget(monkeypatch):
    """The regression's start used to end the search where it ran out of its own part."""
    runs: list[int] = []
    run = InvertingGradients._minimise
    monkeypatch.setattr(
        InvertingGradients, "_minimise", lambda *given: runs.append(1) or run(*given)
    )
    attack = InvertingGradients(10**6, restarts=2, regress=Regress(8), time_budget=0.6)
    begin = time.monotonic()
    assert attack(seen()[1], seeded()).status == TIME_BUDGET
    assert len(runs) == 2
    assert time.monotonic() - begin > 0.5
