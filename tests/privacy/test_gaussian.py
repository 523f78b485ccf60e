"""Closed forms of Gaussian releases, against integrals and identities."""

import numpy as np
import pytest
from scipy import stats

from gradveil.privacy._releases import gaussian_delta, gaussian_epsilon, gaussian_tradeoff

from .oracles import hockey_stick, sampled


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [-1.0, 0.0, 0.7, 4.0])
def test_delta_is_the_integral(mu, epsilon):
    p, q = sampled(1.0, 1 / mu, 1.0), sampled(1.0, 1 / mu, 0.0)
    exact = hockey_stick(p, q, epsilon, 1 + 12 / mu)
    assert gaussian_delta(epsilon, mu) == pytest.approx(exact, abs=1e-9)
    assert epsilon != 0 or gaussian_delta(epsilon, 1.05 * mu) > exact + 1e-3


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
@pytest.mark.parametrize("mu", [1e-3, 0.3, 1.0, 10.0])
def test_epsilon_inverts_delta(delta, mu):
    epsilon = gaussian_epsilon(delta, mu)
    if epsilon == 0:
        assert 2 * stats.norm.cdf(mu / 2) - 1 <= delta
    else:
        assert gaussian_delta(epsilon, mu) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("guess", [1e-3, 0.1, 0.7])
@pytest.mark.parametrize("mu", [0.3, 2.0])
def test_the_tradeoff_is_the_smallest_over_all_epsilons(guess, mu):
    epsilons = np.linspace(-10, 15, 20_001)
    bounds = [np.exp(e) * guess + gaussian_delta(e, mu) for e in epsilons]
    assert gaussian_tradeoff(guess, mu) == pytest.approx(min(bounds), rel=1e-5)


def test_extreme_numbers():
    assert gaussian_delta(1000.0, 1.0) == 0.0
    assert gaussian_delta(-1000.0, 1.0) == pytest.approx(1.0)
    assert gaussian_tradeoff(1.0, 1.0) == 1.0
    for wrong in (0.0, 1.0, -1e-5):
        with pytest.raises(ValueError, match=r"Parameter `delta` should be in \(0, 1\)"):
            gaussian_epsilon(wrong, 1.0)
