"""ε(δ) of a number of releases, and the noise for a given ε."""

import math
from collections.abc import Callable
from functools import lru_cache

from gradveil._checks import (
    check_count,
    check_not_negative,
    check_not_negative_count,
    check_positive,
)

from ._checks import check_delta, check_neighbours, check_probability, require_scipy
from ._gaussian import gaussian_delta, gaussian_epsilon
from ._opacus import loss_curve, renyi_epsilon

PRECISION = 1e-3
"""Of a noise multiplier that is solved for: it is at most so much larger than needed."""

LEAST, MOST = -4.0, 14.0
"""Logarithms of the noise multipliers between which is looked."""


def epsilon_after(
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    neighbours: str = "add-remove",
) -> float:
    """ε(δ) after T releases of N(Σ_b g_b, z² C² I), ‖g_b‖ ≤ C, each g_b in with probability q.

    All of it is an upper bound. For q = 1 it is exact (`gaussian_epsilon` with μ = √T/z). For
    q < 1 and neighbours that differ by one example more or less it is the smaller of two of
    Opacus' accountants: numerical composition of the privacy loss, with its error added, and Rényi
    divergences. Where an example is replaced, g_b moves by 2C: μ = 2√T/z for q = 1; for q < 1 two
    steps of add-remove, (2ε, (1 + e^ε) δ(ε)), which is about twice as large.

    Args:
        noise_multiplier: z; without noise ε is infinite.
        sample_rate: q, the probability of each example (Poisson sampling); 1 if all are in.
        steps: T.
        delta: δ.
        neighbours: "add-remove" or "replace-one".

    >>> round(epsilon_after(4.0, 1.0, 16, 1e-5), 3)
    4.377
    """
    check_not_negative(noise_multiplier, "noise_multiplier")
    check_probability(sample_rate, "sample_rate")
    check_not_negative_count(steps, "steps")
    check_delta(delta)
    check_neighbours(neighbours)
    if steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    if sample_rate == 1:
        moved = 1 if neighbours == "add-remove" else 2
        return gaussian_epsilon(delta, moved * math.sqrt(steps) / noise_multiplier)
    if neighbours == "replace-one":
        return _replaced(noise_multiplier, sample_rate, steps, delta)
    return _sampled(noise_multiplier, sample_rate, steps, delta)


def delta_after(noise_multiplier: float, sample_rate: float, steps: int, epsilon: float) -> float:
    """δ(ε) after T releases, for add-remove neighbours: an upper bound, exact for q = 1.

    >>> round(delta_after(4.0, 1.0, 16, 0.0), 4)
    0.3829
    """
    check_not_negative(noise_multiplier, "noise_multiplier")
    check_probability(sample_rate, "sample_rate")
    check_not_negative_count(steps, "steps")
    check_not_negative(epsilon, "epsilon")
    if steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return 1 - (1 - sample_rate) ** steps  # whether the example was ever in
    if sample_rate == 1:
        return gaussian_delta(epsilon, math.sqrt(steps) / noise_multiplier)
    curve = loss_curve(sample_rate, noise_multiplier, steps, delta_error=1e-10)
    return 1.0 if curve is None else curve.delta(epsilon)


def solve_noise_multiplier(
    target_epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    neighbours: str = "add-remove",
) -> float:
    """The smallest z with ε(δ) ≤ target after T steps, at most 0.1 % larger than needed.

    >>> z = solve_noise_multiplier(4.0, 1e-5, sample_rate=1.0, steps=16)
    >>> 3.99 < epsilon_after(z, 1.0, 16, 1e-5) <= 4.0
    True
    """
    check_positive(target_epsilon, "target_epsilon")
    check_count(steps, "steps")
    require_scipy()
    from scipy.optimize import brentq

    def above(log_z: float) -> float:
        found = epsilon_after(math.exp(log_z), sample_rate, steps, delta, neighbours)
        return min(found, 1e6) - target_epsilon

    low, high = _bracket(above, target_epsilon)
    if low is None:
        return math.exp(high)
    log_z = float(brentq(above, low, high, xtol=PRECISION / 4))
    while above(log_z) > 0:
        log_z += PRECISION / 4
    return math.exp(log_z)


def _bracket(above: Callable[[float], float], target: float) -> tuple[float | None, float]:
    """Logarithms of noise multipliers with too little and with enough noise; `None` for none."""
    low, high = LEAST, 0.0
    while above(high) > 0:
        low, high = high, high + 1.0
        if high > MOST:
            raise ValueError(
                f"Parameter `target_epsilon` should be within reach of a noise multiplier of"
                f" {math.exp(MOST):.0e}. Found `target_epsilon = {target}`. Take fewer steps, a"
                " larger target or a larger `delta`."
            )
    if low > LEAST:
        return low, high
    low = high - 1.0
    while above(low) <= 0:
        low, high = low - 1.0, low
        if low < LEAST:
            return None, high
    return low, high


@lru_cache(maxsize=256)
def _sampled(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """The smaller of two upper bounds."""
    renyi = renyi_epsilon(sample_rate, noise_multiplier, steps, delta)
    curve = loss_curve(sample_rate, noise_multiplier, steps, delta / 1000)
    try:
        return renyi if curve is None else min(renyi, curve.epsilon(delta))
    except ArithmeticError:
        return renyi


def _replaced(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """2ε with (1 + e^ε) δ(ε) ≤ δ: removing one example and adding another."""

    def needed(epsilon: float) -> float:
        share = delta / (1 + math.exp(epsilon))
        return renyi_epsilon(sample_rate, noise_multiplier, steps, share)

    low, high = 0.0, 1.0
    while needed(high) > high:
        low, high = high, 2 * high
        if high > 500:
            return math.inf
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if needed(middle) > middle else (low, middle)
    return 2 * high
