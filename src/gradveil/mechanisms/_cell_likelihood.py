"""The log-likelihood of rounded entries, in float64."""

import math

import torch
from torch import Tensor

from ._likelihood import LOG_ROOT_TAU, rounding_error

MOST_STEPS = 16
"""Up to how many steps from 0 the grid itself is evidence."""

FLOOR = 1e-9
"""The least probability (density in units of 1/step) of an entry: no single one decides."""


EXACT = 1e-8
"""A variance of log-steps below it comes from rounding: the steps are known."""


def cell_log_likelihood(sent: Tensor, value: Tensor, step: Tensor, variance: float = 0.0) -> Tensor:
    """0 where values round to what was sent; -½ (distance to the cell / τ_i)² where they do not.

    With a variance of log step_i², these steps are estimates.
    """
    if variance > EXACT:
        return doubtful_log_probabilities(sent, value, step, variance).sum()
    width = step.double()
    outside = ((sent.double() - value.double()).abs() - width / 2).clamp(min=0)
    return -0.5 * (outside / rounding_error(sent, width)).square().sum()


def doubtful_log_probabilities(
    sent: Tensor, value: Tensor, step: Tensor, variance: float
) -> Tensor:
    """Of each rounded entry, when log step_i² is known up to this variance.

    With a log-normal step of density f around the own estimate: y_i = 0 has the probability
    P[step > 2|v_i|]; y_i ≠ 0 is n steps for some n ≥ 1, and its density is
    Σ_n f(|y_i|/n)/n over the n for which v_i rounds to n steps, ||v_i| - |y_i|| ≤ |y_i|/(2n),
    with equal signs. Further than 16 steps from 0 the grid says nothing, and y_i is uniform within
    half a step around v_i.
    """
    y, v = sent.double(), value.double()
    error, spread = rounding_error(sent), max(0.5 * math.sqrt(variance), 1e-4)
    own = torch.maximum(step.double(), error)
    silent = 0.5 * torch.erfc((2 * v.abs() / own).log() / (spread * math.sqrt(2)))
    silent = torch.where(v == 0, 1.0, silent)
    misfit, size = (y - v).abs() - error, y.abs().clamp(min=1e-300)
    density = torch.zeros_like(y)
    for n in range(1, MOST_STEPS + 1):
        score = (size / (n * own)).log() / spread
        normal = (-0.5 * score.square() - LOG_ROOT_TAU).exp() / (spread * size)  # f(|y|/n)/n
        density = density + torch.where(misfit <= size / (2 * n), normal, 0.0)
    wide = torch.where(misfit <= own / 2 * (1 + 3 * spread), 1 / own, 0.0)
    density = torch.where(size > MOST_STEPS * own, wide, density)
    seen = torch.where(y == 0, silent, density).clamp(min=0)
    floor = torch.where(y == 0, FLOOR, FLOOR / own)
    return torch.maximum(seen, floor).log()
