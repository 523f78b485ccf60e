"""Independent numbers for privacy statements: densities on a line, and simulated attackers."""

import numpy as np
from scipy import integrate, stats


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
