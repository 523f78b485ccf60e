"""How good a noise plan is: against isotropic noise, and against the best there is."""

from math import isinf

from gradveil._checks import check_kind
from gradveil._tensors import total
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import Moments, check_moments

from ._fisher import entry_information, seen_trace


def gain_over_isotropic(moments: Moments, mechanism: Mechanism) -> float:
    """How many times larger the (flat-prior, trace) bound is than isotropic noise's at equal U2.

    Isotropic noise of equal second-order utility has the variance v = Σ g_i² Σ_ii / Σ g_i².

    >>> import torch
    >>> from gradveil import Moments
    >>> from gradveil import OptimalNoise
    >>> moments = Moments(
    ...     {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, input_size=2
    ... )
    >>> round(gain_over_isotropic(moments, OptimalNoise(scale=1.0).plan(moments)), 3)
    1.562
    """
    _check(moments, mechanism)
    spent, squares = _utility_sum(moments, mechanism), float(total(moments.squared_values.values()))
    if squares == 0 or spent == 0:
        return 1.0
    isotropic = Mechanism(std=(spent / squares) ** 0.5, clip=mechanism.clip)
    least, trace = seen_trace(moments, isotropic), seen_trace(moments, mechanism)
    if trace == 0:
        return 1.0 if least == 0 else float("inf")
    return least / trace


def share_of_optimum(moments: Moments, mechanism: Mechanism) -> float:
    """The share of the largest bound reachable at this utility: 1 for Theorem 2's noise.

    (Σ_i s_i |g_i|)² / [(Σ_i s_i² / v_i) (Σ_i g_i² v_i)], v being the mechanism's variances and
    s, g the exact moments of what it sends (clamped and pruned entries do not count); at most 1
    by Cauchy's inequality. 1 where nothing is revealed, 0 where something is sent bare.

    >>> import torch
    >>> from gradveil import Moments
    >>> from gradveil import GradientNoise, OptimalNoise
    >>> moments = Moments(
    ...     {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, input_size=2
    ... )
    >>> plans = [kind(scale=1.0).plan(moments) for kind in (GradientNoise, OptimalNoise)]
    >>> [round(share_of_optimum(moments, plan), 3) for plan in plans]
    [0.64, 1.0]
    """
    _check(moments, mechanism)
    trace = seen_trace(moments, mechanism)
    seen = entry_information(moments, Mechanism(1.0, mechanism.keep, mechanism.clip))
    squares = moments.squared_values
    best = float(total((square * seen[name]).sqrt() for name, square in squares.items()))
    if trace == 0:
        return 1.0
    if best == 0 or isinf(trace):
        return 0.0
    return best**2 / (trace * _utility_sum(moments, mechanism))


def _check(moments: Moments, mechanism: Mechanism) -> None:
    check_moments(moments)
    check_kind(mechanism, "mechanism", Mechanism, "These figures are of noise alone.")


def _utility_sum(moments: Moments, mechanism: Mechanism) -> float:
    values = {name: square.sqrt() for name, square in moments.squared_values.items()}
    variances = Mechanism(mechanism.std).variance(values)
    return float(total(g2 * variances[n] for n, g2 in moments.squared_values.items()))
