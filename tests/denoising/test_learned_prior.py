"""The prior of a denoiser against priors whose score is known."""

import pytest
import torch
from torch import Tensor

from gradveil import OptimalNoise, reconstruction_bound
from gradveil.denoising import Denoiser, LearnedPrior
from gradveil.mechanisms import Mechanism
from gradveil.theory import BoundCase, mean_bound
from tests.theory.oracles import linear, normal, seeded

LEVEL, SIZE = 0.4, 3
ROOT = normal(SIZE, SIZE, seed=8) * torch.tensor([2.0, 1.0, 0.3]).double()
COVARIANCE = ROOT @ ROOT.T
SMOOTHED = COVARIANCE + LEVEL**2 * torch.eye(SIZE).double()


def wiener(noisy: Tensor, level: float, labels: Tensor | None) -> Tensor:
    """The best denoiser of N(0, COVARIANCE)."""
    return noisy @ torch.linalg.solve(SMOOTHED, COVARIANCE)


def gaussian(count: int, seed: int = 0) -> Tensor:
    return normal(count, SIZE, seed=seed) @ ROOT.T


def signs(count: int, seed: int = 0) -> Tensor:
    return (torch.rand(count, 1, generator=seeded(seed)).double() < 0.5) * 2.0 - 1


def best_of_signs(noisy: Tensor, level: float, labels: Tensor | None) -> Tensor:
    """E[x | z] of x = ±1."""
    return torch.tanh(noisy / level**2)


def information_of_signs(level: float) -> float:
    """1/τ² - E[1 - tanh²(z/τ²)] / τ⁴, by integration over z."""
    z = torch.linspace(-9, 9, 200_001).double()
    density = sum(torch.exp(-((z - c) ** 2) / (2 * level**2)) for c in (-1, 1))
    density = density / density.sum()
    variance = (density * (1 - torch.tanh(z / level**2) ** 2)).sum()
    return float(level**-2 - variance * level**-4)


def test_gaussian_samples_have_the_information_of_the_smoothed_gaussian():
    prior = LearnedPrior.measure(wiener, gaussian(20_000), level=LEVEL, generator=seeded(1))
    assert relative(prior.information, torch.linalg.inv(SMOOTHED)) < 0.03
    assert relative(prior.covariance, COVARIANCE) < 0.03
    best = LEVEL**2 * torch.linalg.solve(SMOOTHED, COVARIANCE)
    assert prior.error == pytest.approx(float(best.trace()) / SIZE, rel=0.02)


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest relative error in any direction."""
    root = torch.linalg.inv(torch.linalg.cholesky(expected))
    white = root @ found @ root.T - torch.eye(len(expected)).double()
    return float(torch.linalg.matrix_norm(white, 2))


def test_the_trace_is_that_of_the_error():
    """tr J = n / τ² - MMSE / τ⁴."""
    prior = LearnedPrior.measure(wiener, gaussian(20_000), level=LEVEL, generator=seeded())
    expected = SIZE * (LEVEL**-2 - prior.error * LEVEL**-4)
    assert float(prior.information.trace()) == pytest.approx(expected, rel=0.02)


def test_the_linear_gaussian_bound_is_the_posterior_error():
    message, inputs = linear(), normal(2, SIZE, seed=1)
    prior = LearnedPrior(torch.linalg.inv(SMOOTHED), LEVEL)
    bound = reconstruction_bound(message, inputs, Mechanism(std=0.5), prior, solver="dense")
    data = message.matrix.T @ message.matrix / 0.25
    precision = torch.linalg.inv(COVARIANCE)
    exact = torch.linalg.inv(data + torch.block_diag(precision, precision))
    assert bound.total == pytest.approx(float(exact.trace()), rel=1e-7)


@pytest.mark.parametrize("level", [0.3, 0.6, 1.0])
def test_the_information_of_a_mixture(level):
    """Two atoms: no density without noise, and with it far more than the Gaussian's 1/(1 + τ²)."""
    prior = LearnedPrior.measure(best_of_signs, signs(20_000), level=level, generator=seeded(2))
    assert float(prior.information) == pytest.approx(information_of_signs(level), rel=0.02)
    assert float(prior.information) > 1.05 / (1 + level**2)


@pytest.mark.parametrize("std", [0.3, 0.5, 1.0, 3.0])
def test_the_bound_of_the_examples_themselves_is_met_at_its_level_and_holds_above(std):
    """Messages y = x + std · noise of x = ±1, whose best error is 1 - E tanh²."""
    level = 0.3
    prior = LearnedPrior(torch.tensor([[information_of_signs(level)]]).double(), level)
    case = BoundCase(lambda x: {"w": x}, torch.ones(1, 1).double(), Mechanism(std=std))
    bound = mean_bound([case] * 8, prior)
    best = std**2 - std**4 * information_of_signs(std)
    assert bound.holds
    assert bound.total <= best * (1 + 1e-5)
    assert (bound.total == pytest.approx(best, rel=1e-5)) == (std == level)


def test_a_message_that_tells_more_than_the_prior_was_measured_for_has_no_guarantee():
    prior = LearnedPrior(torch.tensor([[information_of_signs(0.3)]]).double(), 0.3)
    case = BoundCase(lambda x: {"w": x}, torch.ones(1, 1).double(), Mechanism(std=0.1))
    bound = mean_bound([case] * 8, prior)
    assert bound.total > 0
    assert "at noise 0.1 or less" in bound.reason


def test_levels_that_tell_of_the_batch_are_not_covered():
    prior = LearnedPrior(torch.eye(2).double(), 0.5)
    case = BoundCase(lambda x: {"w": x.square() + x}, torch.ones(1, 2).double(), Mechanism(std=9.0))
    private = OptimalNoise(9.0, source="private")
    fixed, told = (mean_bound([case] * 8, prior, planned_by=d) for d in (None, private))
    assert fixed.holds
    assert "fixed levels" in told.reason


@pytest.mark.parametrize("share", [0.0, 0.5, 1.5])
def test_a_worse_denoiser_gives_a_larger_bound(share):
    """And never a larger one than the Gaussian, which knows as much as the best linear guess."""
    level = 0.5

    def worse(noisy: Tensor, level: float, labels: Tensor | None) -> Tensor:
        linear_guess = noisy / (1 + level**2)
        learned = best_of_signs(noisy, level, labels) - linear_guess
        return linear_guess + share * (learned + 0.2 * torch.sin(9 * noisy))

    good, bad = (
        LearnedPrior.measure(d, signs(20_000), level=level, generator=seeded(5))
        for d in (best_of_signs, worse)
    )
    assert bad.error > good.error
    assert float(bad.information) < 0.98 * float(good.information)
    case = BoundCase(lambda x: {"w": x}, torch.ones(1, 1).double(), Mechanism(std=0.5))
    worst = 1 / (1 + 0.5**-2)
    assert mean_bound([case], good).total < mean_bound([case], bad).total < 1.01 * worst


def test_a_denoiser_of_the_wrong_size_is_calibrated():
    """Twice what goes beyond the linear guess shows as much as what does."""
    doubled = LearnedPrior.measure(
        lambda z, t, labels: z / (1 + t**2) + 2 * (best_of_signs(z, t, labels) - z / (1 + t**2)),
        signs(20_000),
        level=0.5,
        generator=seeded(5),
    )
    assert float(doubled.information) == pytest.approx(information_of_signs(0.5), rel=0.03)


def test_a_learned_denoiser_within_classes():
    labels = torch.arange(1000) % 2
    samples = (2.0 * labels[:, None] - 1 + 0.3 * normal(1000, 2)).float()
    denoiser = Denoiser.fit(samples[:800], labels[:800], steps=60, generator=seeded(7))
    prior = LearnedPrior.measure(
        denoiser, samples[800:], labels[800:], level=0.5, generator=seeded(8)
    )
    assert torch.allclose(prior.covariance, 0.09 * torch.eye(2).double(), atol=0.03)
    assert "within classes" in prior.name
    assert "200 held-out samples" in prior.name
    assert "errs upwards" in prior.name


def test_wrong_arguments_say_so():
    eye = torch.eye(2).double()
    for options, error in (
        ({"information": -eye, "level": 0.1}, "positive definite"),
        ({"information": eye[:1], "level": 0.1}, "shape"),
        ({"information": eye, "level": 0.0}, "level"),
    ):
        with pytest.raises(ValueError, match=error):
            LearnedPrior(**options)
    with pytest.raises(TypeError, match="denoiser"):
        LearnedPrior.measure("median", gaussian(20), level=0.1)
    denoiser = Denoiser.fit(gaussian(20).float(), steps=1, generator=seeded())
    with pytest.raises(ValueError, match="one class for each"):
        LearnedPrior.measure(denoiser, gaussian(4).float(), torch.zeros(3).long(), level=0.1)
    with pytest.raises(ValueError, match="trained for"):
        LearnedPrior.measure(denoiser, gaussian(4).float(), level=1e4)
