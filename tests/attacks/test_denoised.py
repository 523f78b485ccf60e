"""A denoiser as an attacker's prior."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from gradveil import GradientNoise
from gradveil.attacks import Adaptive, InvertingGradients, TotalVariation, _adaptive
from gradveil.attacks._priors import Denoised, energy_of
from gradveil.attacks._refine import Finish
from gradveil.denoising import Denoiser

from .tiny import conv_net, generator, observed

SHAPE = (4, 4)
PLACE = torch.arange(16)
DISTANCE = (PLACE[:, None] // 4 - PLACE // 4).abs() + (PLACE[:, None] % 4 - PLACE % 4).abs()
COVARIANCE = 0.25 * 0.8**DISTANCE


def best(noisy: Tensor, level: float, labels: Tensor | None = None) -> Tensor:
    """E[x | x + τn] of N(0, COVARIANCE)."""
    kept = torch.linalg.solve(COVARIANCE + level**2 * torch.eye(16), COVARIANCE)
    return (noisy.flatten(1) @ kept.to(noisy)).view_as(noisy)


def test_its_slope_is_the_negative_score():
    energy, inputs = Denoised(best, level=0.5), torch.randn(3, 1, 4, 4, generator=generator())
    smoothed = COVARIANCE + 0.25 * torch.eye(16)
    expected = torch.linalg.solve(smoothed, inputs.flatten(1).T).T.view_as(inputs)
    torch.testing.assert_close(energy.gradient(inputs), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grad(energy)(inputs), expected, rtol=1e-4, atol=1e-5)
    v = torch.randn(inputs.shape, generator=generator(1))
    assert float((v * energy.curvature(inputs)(v)).sum()) > float((v * expected).sum())


def test_a_network_runs_under_vmap_and_is_told_labels():
    samples, labels = torch.randn(8, 1, 4, 4, generator=generator()), torch.arange(8) % 2
    denoiser = Denoiser.fit(samples, labels, steps=20, generator=generator())
    assert energy_of(denoiser) == Denoised(denoiser)
    energy = Denoised(denoiser, 0.3)
    slopes = vmap(grad(energy))(samples[:, None])
    torch.testing.assert_close(slopes[:, 0], energy.gradient(samples), rtol=1e-3, atol=1e-3)
    told = replace(energy, labels=labels)
    assert not torch.equal(told.gradient(samples), energy.gradient(samples))


def test_levels_fall_from_the_start_to_the_end():
    levels = Denoised(best, level=3.0 / 2**11).levels()
    assert levels == pytest.approx([3.0 / 2**k for k in range(12)])
    assert Denoised(best, level=4.0).levels() == [4.0] * 12


@pytest.mark.slow
def test_an_attack_with_it_is_better_than_one_without_a_prior(monkeypatch):
    truth = torch.randn(6, 16, generator=generator(2)) @ torch.linalg.cholesky(COVARIANCE).T
    truth = truth.view(6, 1, 1, *SHAPE).clamp(-1, 1)
    model = conv_net(1, SHAPE)
    seen = [observed(model, x, [1], GradientNoise(0.2), mechanism="known") for x in truth]
    errors, known = {}, {"learned": Denoised(best), None: TotalVariation(0.0)}
    monkeypatch.setattr(_adaptive, "energy_of", known.get)
    for name, prior in (("learned", "learned"), ("flat", None)):  # `best` is no `Denoiser`
        finish = Finish(steps=2, products=16, widths=())
        attack = Adaptive(InvertingGradients(steps=8), prior, finish=finish)
        found = torch.stack([attack(o, generator(3)).inputs for o in seen])
        errors[name] = float((found - truth).square().mean())
    assert errors["learned"] < 0.8 * errors["flat"]
    assert errors["learned"] < float(COVARIANCE.diagonal().mean())
