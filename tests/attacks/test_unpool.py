"""Unpooling finds images that the descent does not, and gives way where it cannot work."""

import pytest
import torch
from torch import nn

from gradveil import GradientNoise, NoDefense
from gradveil.attacks import (
    Adaptive,
    InvertingGradients,
    Reconstruction,
    ThreatModel,
    Unpool,
    Watch,
    _unpool,
    observe,
)
from gradveil.attacks._targets import Run
from gradveil.scoring import score

from .pooled_nets import small_net
from .small import LOSS, RANGE, observed, seeded, smooth_images

QUICK = Unpool(steps=150)


def test_images_that_descent_does_not_find():
    batch = smooth_images(1, 3, 12, 12)
    observation = observed(small_net(), batch, labels="known")
    strong = InvertingGradients.strong(steps=150, restarts=1, finish=None, peel=None)
    plain = InvertingGradients(150, total_variation=1e-2)
    before = float(score(plain(observation, seeded()), batch, ssim=False).psnr)
    found = strong(observation, seeded())
    now = float(score(found, batch, ssim=False).psnr)
    assert now > 28
    assert now > before + 5
    assert found.loss < 1e-2
    assert found.is_certain


@pytest.mark.slow
def test_a_pair_needs_the_sampled_positions(monkeypatch):
    monkeypatch.setattr(_unpool, "STEPS", 8)
    batch = smooth_images(2, 3, 12, 12)
    observation = observed(small_net(), batch, labels="known")
    hasty = Unpool(steps=60)
    found = hasty.solve(Run(observation, batch[1], seeded(), Watch(None)))
    assert found is not None
    assert float(score(found, batch, ssim=False).psnr.min()) > 24
    monkeypatch.setattr(_unpool, "SWEEPS", 0)
    assert hasty.solve(Run(observation, batch[1], seeded(), Watch(None))) is None


def test_the_adaptive_attack_keeps_what_is_certain(monkeypatch):
    batch = smooth_images(1, 3, 12, 12)
    threat = ThreatModel(mechanism="known")
    observation = observe(
        small_net(), LOSS, batch, NoDefense(), threat=threat, num_classes=10, input_range=RANGE
    )
    guess = Reconstruction(batch[0] * 0.9, batch[1], 0.1, is_certain=True)
    monkeypatch.setattr(Unpool, "solve", lambda *_: guess)
    found = Adaptive(InvertingGradients.strong(steps=2))(observation, seeded())
    torch.testing.assert_close(found.inputs, guess.inputs)


def test_a_guess_that_is_not_certain_must_beat_the_descent(monkeypatch):
    batch = smooth_images(1, 3, 12, 12)
    observation = observed(small_net(), batch, labels="known")
    strong = InvertingGradients.strong(steps=30, restarts=1, finish=None, peel=None)
    far, near = torch.rand(batch[0].shape, generator=seeded()), batch[0] + 1e-3
    for inputs, kept in ((far, False), (near, True)):
        guess = Reconstruction(inputs, batch[1], 0.1)
        monkeypatch.setattr(Unpool, "solve", lambda *_, guess=guess: guess)
        assert torch.equal(strong(observation, seeded()).inputs, inputs) == kept


def test_images_as_far_as_random_ones_are_not_certain(monkeypatch):
    batch = smooth_images(1, 3, 12, 12)
    observation = observed(small_net(), batch, labels="known")
    monkeypatch.setattr(Run, "random_misfit", lambda *_: 1e-9)
    monkeypatch.setattr(_unpool, "NEAR", 10.0)
    hasty = Unpool(steps=3)
    found = hasty.solve(Run(observation, batch[1], seeded(), Watch(None)))
    assert found is not None
    assert not found.is_certain


def test_noise_is_left_to_others():
    batch = smooth_images(1, 3, 12, 12)
    observation = observed(small_net(), batch, labels="known", defense=GradientNoise(0.01))
    assert QUICK.solve(Run(observation, batch[1], seeded(), Watch(None))) is None
    with pytest.raises(ValueError, match="not determined"):
        QUICK(observation, seeded())


def test_a_wide_head_is_left_to_peeling():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.LeakyReLU(), nn.Flatten(), nn.Linear(8 * 144, 10)
    )
    batch = smooth_images(1, 3, 12, 12)
    observation = observed(model, batch, labels="known")
    assert QUICK.solve(Run(observation, batch[1], seeded(), Watch(None))) is None


def test_out_of_time_nothing_is_found():
    batch = smooth_images(1, 3, 12, 12)
    observation = observed(small_net(), batch, labels="known")
    assert QUICK.solve(Run(observation, batch[1], seeded(), Watch(0.0))) is None


def test_settings_are_checked():
    with pytest.raises(ValueError, match="steps"):
        Unpool(steps=0)


@pytest.mark.slow
def test_same_seed_same_images():
    batch = smooth_images(1, 3, 12, 12)
    observation = observed(small_net(), batch, labels="known")
    first, second = (QUICK(observation, seeded(3)) for _ in range(2))
    torch.testing.assert_close(first.inputs, second.inputs, rtol=0, atol=0)
