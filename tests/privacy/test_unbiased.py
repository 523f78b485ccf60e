"""Bounds for unbiased attackers: closed forms, integrals, and attackers who attain them."""

import math

import pytest
import torch

import gradveil
from gradveil.privacy import renyi_bound
from gradveil.privacy._releases import renyi_two

from .oracles import chi_square, sampled


@pytest.mark.parametrize("std", [1.0, 2.0, 5.0])
def test_without_sampling_the_divergence_is_exact(std):
    """D₂ = Δ²/σ² with Δ = 2C."""
    assert renyi_two(std, 1.0, 3) == pytest.approx(3 * 4 / std**2)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("std", [0.7, 1.0, 4.0])
def test_with_sampling_it_bounds_the_integral(rate, std):
    exact = chi_square(sampled(rate, std, 1.0), sampled(rate, std, -1.0), 2 + 14 * std)
    bound = math.expm1(renyi_two(std, rate, 1))
    assert exact <= bound * (1 + 1e-9)
    assert bound < 40 * exact


def test_sampling_helps():
    assert renyi_two(1.0, 0.01, 1) < 1e-3 < renyi_two(1.0, 1.0, 1)


@pytest.mark.parametrize("std", [1.5, 3.0])
def test_the_bound_is_below_an_unbiased_attacker(std):
    """An input x in [-1/2, 1/2], its gradient 2x of norm 1 at most, sent with noise: y/2."""
    error = (std / 2) ** 2
    bound = renyi_bound(1.0, std, 1.0, 1)
    assert 0.05 * error < bound < 0.25 * error  # a quarter is its limit


def test_much_noise_makes_it_tight():
    assert renyi_bound(1.0, 100.0, 1.0, 1) == pytest.approx((100 / 2) ** 2 / 4, rel=1e-3)
    assert renyi_bound(2.0, 3.0, 1.0, 1) == 4 * renyi_bound(1.0, 3.0, 1.0, 1)
    assert renyi_bound(1.0, 0.0, 1.0, 1) == 0.0
    assert renyi_bound(1.0, 0.01, 0.5, 10**4) == 0.0


def test_fisher_information_of_a_linear_release():
    """y = A x + noise: tr J_F = ‖A‖²/σ², and least squares has the error σ² tr (AᵀA)⁻¹."""
    matrix = torch.tensor([[1.0, 0.5], [0.0, 2.0], [1.0, 1.0]], dtype=torch.float64)
    inputs = torch.tensor([[0.3, -0.2]], dtype=torch.float64)
    mechanism = gradveil.mechanisms.Mechanism(std=0.1)
    moments = gradveil.measure(lambda x: {"y": matrix @ x[0]}, inputs, gradveil.sensitivity.Exact())
    trace = gradveil.theory.fisher_trace(moments, mechanism)
    assert trace == pytest.approx(float(matrix.square().sum()) / 0.01)
    attacker = float(torch.linalg.inv(matrix.T @ matrix).trace()) * 0.01 / 2
    assert 2 / trace == pytest.approx(2 * 0.01 / 7.25)
    assert 2 / trace <= attacker
