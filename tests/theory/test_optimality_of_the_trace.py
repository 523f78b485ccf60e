"""Erratum 12: the theorems maximise the trace bound; the full bound usually follows, not always."""

import torch

from gradveil import GradientNoise, Moments, OptimalNoise
from gradveil.theory import GaussianPrior, fisher_trace


def bounds(seed: int) -> tuple[float, float, float, float]:
    """Trace and full bound of isotropic and of optimal noise at equal utility, linear message."""
    generator = torch.Generator().manual_seed(seed)
    slopes = torch.randn(5, 3, generator=generator).double()
    values = torch.randn(5, generator=generator).double()
    moments = Moments({"w": values.square()}, {"w": slopes.square().sum(1)}, input_size=3)
    prior = GaussianPrior(torch.zeros(3).double(), torch.eye(3).double())
    found = []
    for defense in (GradientNoise(utility_budget=1.0), OptimalNoise(utility_budget=1.0, cap=1e6)):
        mechanism = defense.plan(moments)
        variances = mechanism.std["w"].square()
        matrix = slopes.T @ (slopes / variances[:, None]) + prior.precision
        full = float(torch.linalg.inv(matrix).trace())
        found += [9 / (fisher_trace(moments, mechanism) + float(prior.precision.trace())), full]
    return found[0], found[1], found[2], found[3]


def test_the_trace_bound_is_never_smaller_and_the_full_bound_seldom():
    results = [bounds(seed) for seed in range(200)]
    assert all(best >= isotropic - 1e-12 for isotropic, _, best, _ in results)
    smaller = sum(best < isotropic for _, isotropic, _, best in results)
    assert 0 < smaller < 100
