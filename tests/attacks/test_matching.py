import pytest
import torch
from torch.func import grad

from gradveil import GaussianPrior, GradientPruning, Mechanism, OptimalPruning, RoundingMechanism
from gradveil.attacks import TotalVariation
from gradveil.attacks._channel import open_channel
from gradveil.attacks._matching import (
    Evidence,
    cosine_distance,
    euclidean_distance,
    euclidean_evidence,
)
from gradveil.attacks._refine import Objective, refine
from gradveil.attacks._regularisers import GaussianEnergy, energy_of, total_variation
from gradveil.attacks._smoothing import SmoothLeakyReLU, SmoothTwin

from .tiny import conv_net, generator, observed, smooth_images


def test_distances_by_hand():
    y = torch.tensor([3.0, 4.0])
    assert float(cosine_distance(2 * y, y)) == pytest.approx(0, abs=1e-6)
    assert float(cosine_distance(-y, y)) == pytest.approx(2)
    assert float(cosine_distance(torch.zeros(2), y)) == 1
    assert float(euclidean_distance(2 * y, y)) == pytest.approx(1)
    assert float(euclidean_evidence(y).misfit(2 * y)) == pytest.approx(1)


def test_intervals_cost_only_outside():
    evidence = Evidence(
        torch.tensor([-1.0, 2.0, 0.0]),
        torch.tensor([1.0, torch.inf, 0.0]),
        torch.tensor([1.0, 4.0, 0.0]),
    )
    values = torch.tensor([3.0, 1.0, 5.0])
    assert float(evidence.misfit(values)) == pytest.approx(0.5 * (4 + 4))
    assert evidence.residual(torch.tensor([0.5, 7.0, 0.0])).tolist() == [0, 0, 0]
    assert evidence.curvature(torch.tensor([0.5, 1.0, 0.0])).tolist() == [0, 4, 0]


def test_total_variation_by_hand():
    image = torch.tensor([[[[0.0, 1.0], [2.0, 3.0]]]])
    assert float(total_variation(image)) == pytest.approx((2 + 2 + 1 + 1) / 4)
    assert float(total_variation(torch.ones(2, 5))) == 0


@pytest.mark.parametrize("kind", ["variation", "gaussian", "flat"])
def test_an_energy_s_gradient_is_its_gradient(kind):
    inputs = torch.randn(2, 1, 4, 5, generator=generator(), dtype=torch.float64)
    cov = torch.eye(20, dtype=torch.float64) * 0.5 + 0.1
    prior = GaussianPrior(torch.full((20,), 0.3, dtype=torch.float64), cov)
    energy = energy_of(
        {"variation": TotalVariation(2.0, corner=1e-9), "gaussian": prior, "flat": None}[kind]
    )
    torch.testing.assert_close(energy.gradient(inputs), grad(energy)(inputs))
    v = torch.randn(inputs.shape, generator=generator(1), dtype=inputs.dtype)
    assert float((v * energy.curvature(inputs)(v)).sum()) >= 0


def test_refine_solves_linear_least_squares_with_a_prior():
    matrix = torch.randn(12, 6, generator=generator(), dtype=torch.float64)
    sent = torch.randn(12, generator=generator(1), dtype=torch.float64)
    cov = torch.eye(3, dtype=torch.float64) + 0.3
    prior = GaussianPrior(torch.ones(3, dtype=torch.float64), cov)
    weight = torch.linspace(0.5, 2, 12, dtype=torch.float64)
    objective = Objective(
        lambda x: matrix @ x.flatten(), Evidence(sent, sent, weight), GaussianEnergy(prior)
    )
    start = torch.zeros(2, 3, dtype=torch.float64)
    found = refine(objective, start, steps=30, products=50, tolerance=0)
    precision = prior.matrix(6)
    expected = torch.linalg.solve(
        matrix.T @ (weight[:, None] * matrix) + precision,
        matrix.T @ (weight * sent) + precision @ torch.ones(6, dtype=torch.float64),
    )
    torch.testing.assert_close(found.inputs.flatten(), expected, atol=1e-6, rtol=0)


def test_refine_stays_in_the_range_and_never_goes_up():
    sent = torch.tensor([2.0, -2.0, 0.2])
    objective = Objective(torch.flatten, euclidean_evidence(sent), energy_of(None))
    low, high = torch.tensor(-1.0), torch.tensor(1.0)
    found = refine(objective, torch.zeros(1, 3), steps=20, products=10, low=low, high=high)
    torch.testing.assert_close(found.inputs, torch.tensor([[1.0, -1.0, 0.2]]), atol=1e-3, rtol=0)


def test_the_smooth_twin_tends_to_the_model():
    inputs = torch.randn(50, generator=generator())
    exact = torch.nn.functional.leaky_relu(inputs, 0.1)
    torch.testing.assert_close(SmoothLeakyReLU(0.1, 1e-4)(inputs), exact, atol=1e-3, rtol=0)
    model = conv_net(1, (4, 4), smooth=False)
    observation = observed(model, smooth_images(2, 1, (4, 4)), [0, 1])
    twin = SmoothTwin(observation, 0.1)
    assert twin.is_smoother
    assert any(isinstance(m, torch.nn.LeakyReLU) for m in model.modules())  # left alone
    assert not SmoothTwin(
        observed(conv_net(1, (4, 4)), torch.zeros(1, 1, 4, 4), [0]), 1
    ).is_smoother


def channel_of(mechanism, sent, defense=None, sensitivities=None, **changes):
    observation = observed(conv_net(1, (2, 2)), torch.zeros(1, 1, 2, 2), [0])
    object.__setattr__(observation, "defense", defense)
    for name, value in changes.items():
        object.__setattr__(observation, name, value)
    return open_channel(observation, {"w": torch.tensor(sent)}, mechanism, sensitivities)


def test_noise_is_weighed_by_its_variance():
    channel = channel_of(Mechanism(std={"w": torch.tensor([0.5, 2.0])}), [1.0, -1.0])
    evidence = channel.evidence(1.0, 1e-12, 4)
    torch.testing.assert_close(evidence.weight, torch.tensor([4.0, 0.25]))
    assert torch.equal(evidence.low, evidence.high)


def test_magnitude_pruning_limits_what_was_not_sent():
    keep = {"w": torch.tensor([1.0, 0.0, 1.0])}
    mechanism = Mechanism(std=0.0, keep=keep)
    channel = channel_of(mechanism, [3.0, 0.0, -2.0], GradientPruning(1 / 3))
    assert channel.high.tolist() == [3, 2, -2]
    assert channel.low.tolist() == [3, -2, -2]
    assert channel.evidence(0.0, 1e-2, 4).high.tolist() == [3, 0, -2]
    assert channel.evidence(0.5, 1e-2, 4).high.tolist() == [3, 1, -2]


def test_a_public_mask_says_nothing_of_what_it_hides():
    keep = {"w": torch.tensor([1.0, 0.0, 1.0])}
    mechanism = Mechanism(std=0.0, keep=keep)
    channel = channel_of(
        mechanism, [3.0, 0.0, -2.0], GradientPruning(1 / 3), plan_is_public=True
    )  # fmt: skip
    assert channel.evidence(1.0, 1e-2, 4).weight[1] == 0
    assert channel.evidence(0.0, 1e-2, 4).weight[1] > 0


def test_optimal_pruning_limits_by_the_sensitivity():
    keep = {"w": torch.tensor([1.0, 0.0, 0.0])}
    channel = channel_of(
        Mechanism(std=0.0, keep=keep),
        [2.0, 0.0, 0.0],
        OptimalPruning(2 / 3),
        {"w": torch.tensor([1.0, 1.0, 4.0])},
    )
    torch.testing.assert_close(channel.high, torch.tensor([2.0, 3.0, 6.0]))  # 1.5 s_i / (1/2)


@pytest.mark.parametrize("std", [0.0, 0.5])
def test_what_was_clipped_is_compared_after_clipping(std: float):
    """-log p(y | g) = (clip(g) - y)² / 2 std², with or without noise."""
    sent = torch.tensor([1.0, -1.0, 0.5]) + std * torch.tensor([0.4, 0.4, 0.4])
    channel = channel_of(Mechanism(std=std, clip=1.0), sent.tolist())
    evidence = channel.evidence(1.0, 1e-3, 10)
    values = torch.tensor([3.0, -2.0, 0.7], requires_grad=True)
    residual = torch.stack([1 - sent[0], -1 - sent[1], values[2] - sent[2]])
    torch.testing.assert_close(evidence.residual(values), residual)
    slope = torch.autograd.grad(evidence.misfit(values), values)[0]
    torch.testing.assert_close(slope, evidence.slope(values.detach()))
    assert slope[:2].tolist() == [0, 0]
    assert evidence.curvature(values).tolist()[:2] == [0, 0]


def test_a_known_mask_silences_its_zeros_even_under_noise():
    mask = {"w": torch.tensor([1.0, 0.0, 1.0])}
    planned = Mechanism(std=0.1, keep=mask)
    observation = observed(conv_net(1, (2, 2)), torch.zeros(1, 1, 2, 2), [0])
    object.__setattr__(observation, "mechanism", planned)
    channel = open_channel(observation, {"w": torch.tensor([2.0, 0.05, -1.0])}, planned, None)
    assert channel.silent.tolist() == [False, True, False]


def test_rounding_gives_cells():
    rounded = channel_of(RoundingMechanism({"w": torch.tensor([0.5, 0.5, 0.0])}), [1.0, 0.0, 0.3])
    torch.testing.assert_close(rounded.low, torch.tensor([0.75, -0.25, 0.3]))
