"""The ridge's error is that of really leaving one sample out."""

import pytest
import torch

from gradveil.attacks._regress import STRENGTHS, choose_ridge, fit_ridge

from .small import seeded


def problem(noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    features = torch.randn(12, 5, generator=seeded(), dtype=torch.float64) + 3
    weights = torch.randn(5, 2, generator=seeded(1), dtype=torch.float64)
    extra = torch.randn(12, 2, generator=seeded(2), dtype=torch.float64)
    return features, features @ weights + noise * extra + 7


def left_out_error(features: torch.Tensor, targets: torch.Tensor, strength: float) -> float:
    """By fitting again without each sample, over the error of the others' mean."""
    errors, means = [], []
    for n in range(len(features)):
        keep = torch.arange(len(features)) != n
        mean, level = features[keep].mean(0), targets[keep].mean(0)
        x, y = features[keep] - mean, targets[keep] - level
        shift = strength * torch.eye(x.shape[1], dtype=x.dtype)
        weights = torch.linalg.solve(x.T @ x + shift, x.T @ y)
        errors.append(targets[n] - level - (features[n] - mean) @ weights)
        means.append(targets[n] - level)
    return float(torch.stack(errors).square().mean() / torch.stack(means).square().mean())


@pytest.mark.parametrize("noise", [0.1, 3.0])
def test_the_chosen_ridge_has_the_least_error_of_samples_left_out(noise):
    features, targets = problem(noise)
    centred, goal = features - features.mean(0), targets - targets.mean(0)
    kernel = centred @ centred.T
    found = choose_ridge(kernel, goal)
    unit = float(kernel.diagonal().mean())
    errors = {s * unit: left_out_error(features, targets, s * unit) for s in STRENGTHS}
    assert found.error == pytest.approx(min(errors.values()), rel=1e-6)
    assert found.strength == pytest.approx(min(errors, key=lambda s: errors[s]))
    prediction = kernel @ fit_ridge(kernel, goal, found)
    shift = found.strength * torch.eye(5, dtype=torch.float64)
    expected = centred @ torch.linalg.solve(centred.T @ centred + shift, centred.T @ goal)
    torch.testing.assert_close(prediction, expected)


def test_targets_that_have_nothing_to_do_with_the_kernel_stay_at_their_mean():
    centred = problem(0.0)[0]
    centred = centred - centred.mean(0)
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    alone = vectors[:, :1] - vectors[:, :1].mean()
    assert float(values[0]) == pytest.approx(0, abs=1e-9)
    found = choose_ridge(centred @ centred.T, alone)
    assert found.error <= 1.0
    assert float(fit_ridge(centred @ centred.T, alone, found).abs().max()) < 0.1
