"""Kernel ridge regression with an intercept, its strength chosen by leaving one out."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

STRENGTHS = tuple(10.0 ** (k / 2) for k in range(-6, 5))
"""The ridges that are tried, over the mean of the kernel's diagonal."""


class Ridge(NamedTuple):
    """How strongly to regularise, and what that leaves."""

    strength: float
    """λ; infinite where no other predicts better than the mean."""
    error: float
    """The mean squared error of samples left out, over the targets' variance."""


def choose_ridge(kernel: Tensor, targets: Tensor) -> Ridge:
    """For a centred kernel matrix and centred targets, one row for each sample.

    With A = (K + λ I)⁻¹ the residuals are λ A Y and the leverages 1 - λ A_nn + 1/N (the intercept),
    so that the error of sample n, left out, is (λ A Y)_n / (λ A_nn - 1/N).
    """
    samples, unit = len(kernel), float(kernel.diagonal().mean())
    values, vectors = torch.linalg.eigh(kernel)
    values, rotated = values.clamp(min=0), vectors.T @ targets
    whole = float(targets.square().mean()) * (samples / (samples - 1)) ** 2
    best = Ridge(math.inf, 1.0)
    for strength in STRENGTHS:
        ridge = strength * unit
        inverse = 1 / (values + ridge)
        residuals = ridge * (vectors @ (inverse[:, None] * rotated))
        left = (ridge * (vectors.square() @ inverse) - 1 / samples).clamp(min=1e-9)
        error = float((residuals / left[:, None]).square().mean()) / whole
        best = min(best, Ridge(ridge, error), key=lambda found: found.error)
    return best


def fit_ridge(kernel: Tensor, targets: Tensor, ridge: Ridge) -> Tensor:
    """α with prediction = mean of the targets + Σ_n k(x, x_n) α_n."""
    if math.isinf(ridge.strength):
        return torch.zeros_like(targets)
    shift = ridge.strength * torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
    solution: Tensor = torch.linalg.solve(kernel + shift, targets)
    return solution
