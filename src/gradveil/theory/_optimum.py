"""How good a noise plan is: against isotropic noise, and against the best there is."""

import torch

from gradveil._typing import Tensors
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import Moments

from ._fisher import fisher_trace


def gain_over_isotropic(moments: Moments, mechanism: Mechanism) -> float:
    """How many times larger the (flat-prior, trace) bound is than isotropic noise's at equal U2.

    Isotropic noise of equal second-order utility has the variance v = Σ g_i² Σ_ii / Σ g_i².
    """
    spent, squares = _utility_sum(moments, mechanism), _total(moments.squared_values)
    if squares == 0 or spent == 0:
        return 1.0
    isotropic = Mechanism(std=(spent / squares) ** 0.5, clip=mechanism.clip)
    return fisher_trace(moments, isotropic) / fisher_trace(moments, mechanism)


def share_of_optimum(moments: Moments, mechanism: Mechanism) -> float:
    """The share of the largest bound reachable at this utility: 1 for Theorem 2's noise.

    (Σ_i s_i |g_i|)² / [(Σ_i s_i² / v_i) (Σ_i g_i² v_i)], v being the mechanism's variances and
    s, g the exact moments; at most 1 by Cauchy's inequality.
    """
    best = sum(
        float((square * moments.sensitivities[name]).sqrt().sum(dtype=torch.float64))
        for name, square in moments.squared_values.items()
    )
    return best**2 / (fisher_trace(moments, mechanism) * _utility_sum(moments, mechanism))


def _utility_sum(moments: Moments, mechanism: Mechanism) -> float:
    values = {name: square.sqrt() for name, square in moments.squared_values.items()}
    variances = Mechanism(mechanism.std).variance(values)
    return _total({n: g2 * variances[n] for n, g2 in moments.squared_values.items()})


def _total(tensors: Tensors) -> float:
    return sum(float(tensor.sum(dtype=torch.float64)) for tensor in tensors.values())
