"""What the noise levels of one matrix say of the layer's input."""

from dataclasses import dataclass

import torch
from torch import Tensor

SWEEPS = 6
"""How often columns and rows are fitted in turn."""

KEPT = 0.05
"""The share of the first, flat distribution of columns that is kept: nothing becomes impossible."""


@dataclass(frozen=True)
class Columns:
    """u_j of every column, up to one factor, with the c_i of the rows that were found with them."""

    squares: Tensor
    """y_ij² over their median."""
    rows: Tensor
    """c_i."""
    mean: Tensor
    """E[u_j | y]."""
    spread: Tensor
    """The standard deviation of u_j given y."""

    def costs(self, values: Tensor) -> Tensor:
        """-log p(y_j | u_j = value) of each column (rows) and each value (columns)."""
        return _costs(self.squares, values, self.rows)


def read_columns(sent: Tensor) -> Columns:
    """Fit y_ij ~ N(0, λ √(1/u_j² + c_i²)) to what was sent of a matrix, all columns and rows.

    For one example the matrix's gradient is g_ij = δ_i a_j, and its squared sensitivity is close to
    δ_i² ‖∇a_j‖² + a_j² ‖∇δ_i‖². So optimal noise has the variance λ s_ij / |g_ij| with
    u_j = |a_j| / ‖∇a_j‖ and c_i = ‖∇δ_i‖ / |δ_i|: the mean of y² over the rows tells how large each
    entry of the layer's input is, however large the noise. The rows c_i are fitted by maximum
    likelihood, the columns u_j by their posterior mean, under the distribution of all of them,
    which is fitted, too. λ stands for a factor that columns and rows share; 1 here. Rows of zeros
    (dead units whose noise is 0) are left out.
    """
    squares = sent.detach().square()
    squares = squares[squares.any(1)]
    squares = squares / squares.median().clamp(min=torch.finfo(squares.dtype).tiny)
    values = torch.logspace(-2.5, 2.5, 101).to(squares)
    choices = torch.cat([values.new_zeros(1), torch.logspace(-2, 2, 61).to(squares)])
    rows = squares.new_zeros(len(squares))
    weights = torch.full_like(values, 1 / len(values))
    for _ in range(SWEEPS):
        shares = (weights.log() - _costs(squares, values, rows)).softmax(1)
        weights = (1 - KEPT) * shares.mean(0) + KEPT / len(values)
        mean = shares @ values
        rows = choices[_costs(squares.T, 1 / choices, 1 / mean).argmin(1)]
    spread = (shares @ values.square() - mean.square()).clamp(min=0).sqrt()
    return Columns(squares, rows, mean, spread)


def _costs(squares: Tensor, values: Tensor, rows: Tensor) -> Tensor:
    """½ Σ_i (y_ij² / v_i + log v_i) with v_i = √(1/u² + c_i²), for each column j and value u."""
    levels = (values.pow(-2)[None] + rows.square()[:, None]).sqrt()
    return 0.5 * (squares.T @ levels.reciprocal() + levels.log().sum(0))
