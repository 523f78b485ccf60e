"""Independent numbers for privacy statements: densities on a line, and simulated attackers."""

import numpy as np
from scipy import integrate, optimize, stats


def sampled(rate: float, std: float, mean: float):
    """The density of N(mean, std²) with probability `rate`, else of N(0, std²)."""

    def density(x):
        return (1 - rate) * stats.norm.pdf(x, 0, std) + rate * stats.norm.pdf(x, mean, std)

    return density


def hockey_stick(p, q, epsilon: float, reach: float) -> float:
    """∫ (p - e^ε q)₊, on a fine grid."""
    x = np.linspace(-reach, reach, 400_001)
    return float(integrate.trapezoid(np.maximum(p(x) - np.exp(epsilon) * q(x), 0), x))


def chi_square(p, q, reach: float) -> float:
    """∫ p²/q - 1, on a fine grid."""
    x = np.linspace(-reach, reach, 400_001)
    return float(integrate.trapezoid(p(x) ** 2 / q(x), x)) - 1


def log_ratios(rate: float, std: float, steps: int, trials: int, seed: int, inside: bool):
    """ln P/Q of simulated runs: the statistic of Neyman and Pearson's attacker."""
    numbers = np.random.default_rng(seed)
    total = np.zeros(trials)
    for _ in range(steps):
        x = numbers.normal(0, std, trials)
        if inside:
            x += numbers.random(trials) < rate
        total += np.log1p(rate * np.expm1((2 * x - 1) / (2 * std**2)))
    return total


def shifted(shifts: dict[int, float], std: float):
    """The density of N(k, std²) with the probability of each k."""

    def density(x):
        return sum(share * stats.norm.pdf(x, k, std) for k, share in shifts.items())

    return density


def composed_epsilon(p, q, steps: int, delta: float, low: float, high: float, mesh: float = 4e-4):
    """ε(δ) of `steps` draws of p against as many of q, from below and from above.

    The loss ln p/q of one draw is integrated over [low, high], rounded to multiples of the mesh,
    down or up, and composed by a Fourier transform: the two ends are `steps` meshes apart at most.
    """
    x = np.linspace(low, high, 40_001)
    masses = p(x) * (x[1] - x[0])
    masses, losses = masses[masses > 1e-22], (np.log(p(x)) - np.log(q(x)))[masses > 1e-22]
    ways = (np.floor, np.ceil)
    return tuple(_epsilon_of(masses, way(losses / mesh), steps, delta, mesh) for way in ways)


def _epsilon_of(masses, places, steps: int, delta: float, mesh: float) -> float:
    least, size = places.min(), int(places.max() - places.min()) + 1
    one = np.bincount((places - least).astype(int), masses, size)
    length = 1 << (steps * size).bit_length()
    pmf = np.maximum(np.fft.irfft(np.fft.rfft(one, length) ** steps, length), 0)
    losses = (steps * least + np.arange(length)) * mesh

    def above(epsilon: float) -> float:
        chosen = losses > epsilon
        return float(pmf[chosen] @ -np.expm1(epsilon - losses[chosen])) - delta

    return float(optimize.brentq(above, 0, 100, xtol=1e-6))
