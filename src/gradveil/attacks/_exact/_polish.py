"""Least-squares steps that bring a noisy solution to the best one."""

import torch
from torch import Tensor

from .._evidence import Call
from .._observation import Observation
from .._search import clamp
from ._explanation import Explained, output_gradients
from ._factors import Factors

_STEPS = 8


def polish(explained: Explained, factors: Factors, observation: Observation, call: Call) -> Tensor:
    """Inputs that fit the layer's gradient in all units, X ← Δ(X)⁺ ∂L/∂W, in a few rounds.

    What was found from zeros uses each example's inactive units; Δ(X), the gradients at the outputs
    that the inputs themselves make, uses all units and so averages over more of the noise. The
    rounds end where they no longer come nearer to the gradient.
    """
    gradient = factors.rows @ factors.basis
    best = now = explained.inputs
    least = torch.inf
    for _ in range(_STEPS):
        shaped = clamp(now.reshape(-1, *observation.input_shape), observation.low, observation.high)
        deltas = output_gradients(shaped, explained.labels, observation, call)[:, factors.units]
        inside = shaped.flatten(1)
        if factors.has_bias:
            inside = torch.cat([inside, torch.ones_like(inside[:, :1])], dim=1)
        misfit = float((deltas.T @ inside - gradient).square().sum())
        if not misfit < least:
            break
        best, least = shaped.flatten(1), misfit
        now = (torch.linalg.pinv(deltas.T) @ gradient)[:, : best.shape[1]]
    return best
