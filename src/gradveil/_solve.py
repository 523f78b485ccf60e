"""Linear solves with a matrix that is only known by its products."""

from collections.abc import Callable

import torch
from torch import Tensor

Multiply = Callable[[Tensor], Tensor]


def conjugate_gradients(
    multiply: Multiply,
    right: Tensor,
    precondition: Multiply | None = None,
    tolerance: float = 1e-4,
    max_steps: int = 500,
) -> tuple[Tensor, bool]:
    """Solve A x = b for each row b of `right`, and whether all rows reached the tolerance.

    A is symmetric positive definite. Started from 0, bᵀx grows monotonically to bᵀA⁻¹b; a row
    stops when the residual's norm, preconditioned if so asked, has fallen by `tolerance`.
    """
    precondition = precondition or (lambda rows: rows)
    solution, residual = torch.zeros_like(right), right.clone()
    preconditioned = precondition(residual)
    direction = preconditioned.clone()
    size = (residual * preconditioned).sum(1, keepdim=True)
    goal = size * tolerance**2
    for _ in range(max_steps):
        open_rows = size > goal
        if not bool(open_rows.any()):
            break
        product = multiply(direction)
        curvature = (direction * product).sum(1, keepdim=True)
        step = torch.where(open_rows & (curvature > 0), size / curvature, 0.0)
        solution += step * direction
        residual -= step * product
        preconditioned = precondition(residual)
        new_size = (residual * preconditioned).sum(1, keepdim=True)
        direction = preconditioned + torch.where(size > 0, new_size / size, 0.0) * direction
        size = torch.where(open_rows, new_size, size)
    return solution, bool((size <= goal).all())  # a NaN, after an overflow, is not
