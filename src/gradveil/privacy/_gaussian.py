"""Closed forms for Gaussian releases of the whole data: μ, ε, δ and the trade-off."""

import math

from gradveil._checks import check_positive

from ._checks import check_delta, check_probability, require_scipy


def gaussian_delta(epsilon: float, mu: float) -> float:
    """δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ), for one Gaussian release with Δ/σ = μ.

    T releases of noise multiplier z are one with μ = √T / z. Reference: Balle and Wang, "Improving
    the Gaussian Mechanism for Differential Privacy", 2018, Theorem 8.

    >>> round(gaussian_delta(0.0, 1.0), 4)  # the total variation, 2 Φ(1/2) - 1
    0.3829
    """
    require_scipy()
    from scipy.special import log_ndtr  # only accounting needs it

    check_positive(mu, "mu")
    first, second = log_ndtr(mu / 2 - epsilon / mu), log_ndtr(-mu / 2 - epsilon / mu)
    return max(0.0, float(math.exp(first) - math.exp(min(0.0, epsilon + second))))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ δ, see `gaussian_delta`.

    >>> round(gaussian_epsilon(1e-5, 1.0), 3)
    4.377
    """
    require_scipy()
    from scipy.optimize import brentq

    check_delta(delta)
    check_positive(mu, "mu")
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    most = mu * (mu / 2 + 40)  # where δ(ε) is below Φ(-40)
    return float(brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0.0, most, xtol=1e-12))


def gaussian_tradeoff(guess: float, mu: float) -> float:
    """Φ(Φ⁻¹(κ) + μ): the most probable that an event of probability κ becomes.

    Reference: Dong, Roth and Su, "Gaussian Differential Privacy", 2022.

    >>> round(gaussian_tradeoff(0.1, 1.0), 3)
    0.389
    """
    require_scipy()
    from scipy.special import ndtr, ndtri

    check_probability(guess, "guess")
    return float(ndtr(ndtri(guess) + mu))
