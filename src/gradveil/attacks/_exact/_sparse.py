"""The search for the gradients of single examples: sparse vectors in a subspace."""

import torch
from torch import Tensor

from gradveil._random import normal_like

_STEPS = 40
_WIDTHS = (1.0, 0.05)
"""The size of an entry that counts as 0, relative to the typical one: at the start, at the end."""
_STEEPNESS, _FLOOR = 10.0, 0.01
"""How strongly the layer's outputs guide the weights."""


def search(rows: Tensor, outputs: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Directions q in which rows · q has many zeros; most of them are right, some are not.

    Reweighted least squares: q ← argmin Σ_i w_i (rows_i · q)², w_i = c_i / ((rows_i · q)² + ε²),
    with ε falling. The examples' own gradients are zero exactly where their outputs are negative,
    and outputs are linear in few variables: they lie in the column space of `outputs`. So the
    pattern of zeros, projected on that space, says which zeros to trust: c_i = sigmoid(-z_i), z the
    projection. A start is the null direction of the units that a random point of that space leaves
    inactive.

    Args:
        rows: Balanced, shape (units, rank).
        outputs: An orthonormal basis of what the outputs can be, shape (units, up to rank).
        count: How many searches run beside each other.
        generator: Of the starts.
    """
    blank = rows.new_empty(count, outputs.shape[1])
    point = normal_like(blank, generator) @ outputs.T
    trust = torch.sigmoid(-3 * point / point.std(dim=1, keepdim=True)) + 0.02
    directions = normal_like(rows.new_empty(count, rows.shape[1]), generator)
    products = (rows[:, :, None] * rows[:, None, :]).flatten(1)
    for _ in range(3):
        directions = _solve(products, trust, directions)
    unit = rows.shape[1] ** -0.5
    for step in range(_STEPS):
        first, last = _WIDTHS
        width = unit * first * (last / first) ** (step / (_STEPS - 1))
        weights = 1 / ((directions @ rows.T).square() + width**2)
        pattern = 1 - 2 * width**2 * weights
        expected = (pattern @ outputs) @ outputs.T
        trust = torch.sigmoid(-_STEEPNESS * expected) + _FLOOR
        directions = _solve(products, weights * trust, directions)
    return directions


def _solve(products: Tensor, weights: Tensor, directions: Tensor) -> Tensor:
    """One inverse iteration each with Σ_i w_i rows_i rows_iᵀ, scaled to length 1."""
    size = directions.shape[1]
    normal = (weights @ products).reshape(-1, size, size)
    factor = torch.linalg.cholesky_ex(normal)[0]
    solved = torch.cholesky_solve(directions[:, :, None], factor)[:, :, 0]
    return torch.nan_to_num(solved / solved.norm(dim=1, keepdim=True))
