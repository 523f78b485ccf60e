"""Levenberg-Marquardt steps of a problem with some hundred unknowns, with its whole Jacobian."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jacfwd

from .._search import Watch

TRIALS = 5
"""How often a step is shortened before the search ends."""


def least_squares(
    residuals: Callable[[Tensor], Tensor],
    row: Tensor,
    *,
    steps: int,
    watch: Watch,
    tolerance: float = 1e-3,
    good: float = 0.0,
) -> tuple[Tensor, float]:
    """A minimum of Σ residuals² from a start, and its value.

    It ends after `steps`, below `good`, or where a step lowers the sum by less than the share
    `tolerance`.

    >>> found, cost = least_squares(
    ...     lambda x: x.square() - 4, torch.tensor([1.0, -3.0]), steps=20, watch=Watch(None))
    >>> found.round(decimals=2).tolist(), cost < 1e-6
    ([2.0, -2.0], True)
    """
    values, damping = residuals(row), 1e-2
    cost = float(values.square().sum())
    for _ in range(steps):
        if watch.is_over() or cost < good:
            break
        jacobian: Tensor = jacfwd(residuals)(row)
        matrix, slope = jacobian.T @ jacobian, jacobian.T @ values
        sizes = matrix.diagonal() + 1e-4 * matrix.diagonal().mean()
        before = cost
        for _ in range(TRIALS):
            if watch.is_over():
                break
            step = torch.linalg.solve_ex(matrix + torch.diag(damping * sizes), slope)[0]
            trial = row - step.nan_to_num()
            tried = residuals(trial)
            if float(tried.square().sum()) < cost:
                row, values, cost = trial, tried, float(tried.square().sum())
                damping = max(damping / 5, 1e-10)
                break
            damping *= 5
        if before - cost < tolerance * before:
            break
    return row, cost
