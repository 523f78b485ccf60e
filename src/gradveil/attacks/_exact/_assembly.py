"""From one direction for each example to the examples themselves."""

from typing import NamedTuple

import torch
from torch import Tensor

from ._factors import Factors


class Batch(NamedTuple):
    """The different inputs of a batch and the gradients at their outputs."""

    inputs: Tensor
    """Shape (rank, inputs); without a bias in the layer, up to a positive factor each."""
    deltas: Tensor
    """Shape (rank, units that any of them reaches), up to the inverse factors."""
    agreement: Tensor
    """For each input the share of units whose gradient is 0 just where their output is below 0."""


def assemble(factors: Factors, zeros: Tensor) -> Batch | None:
    """The batch whose gradients are 0 in these units; `None` where that determines none.

    The direction of each example is the one that fits its zeros best, q = argmin ‖rows_Z q‖. With
    all of them in Q, [X, 1] = Q⁻¹ basis up to the length of each row, which the 1 fixes.

    Args:
        factors: Of the layer's gradient.
        zeros: For each example the units that it does not reach, shape (rank, units).
    """
    directions = torch.stack([torch.linalg.svd(factors.rows[own])[2][-1] for own in zeros])
    dual = torch.linalg.inv_ex(directions.T)[0]
    scale = _scale(factors, dual, zeros)
    if not bool(torch.isfinite(dual).all()) or bool((scale == 0).any()):
        return None
    found = dual @ factors.basis / scale
    inputs = found[:, :-1] if factors.has_bias else found
    deltas = directions @ factors.rows.T * scale
    return Batch(inputs, deltas, agreement(factors, directions, zeros))


def agreement(factors: Factors, directions: Tensor, zeros: Tensor) -> Tensor:
    """The share of units that are 0 just where the input's own output is negative.

    Args:
        factors: Of the layer's gradient.
        directions: Sets of as many directions as the rank, shape (..., rank, rank).
        zeros: Of each of them, shape (..., rank, units).

    Returns:
        Shape (..., rank). A wrong direction spoils this for itself and for those it is mixed of.
    """
    dual = torch.linalg.inv_ex(directions.mT)[0]
    outputs = dual @ factors.outputs.T / _scale(factors, dual, zeros).sign()
    share: Tensor = ((outputs > 0) == ~zeros).to(outputs.dtype).mean(dim=-1)
    return share


def _scale(factors: Factors, dual: Tensor, zeros: Tensor) -> Tensor:
    """What the rows of dual · basis are to be divided by; without a bias only their signs."""
    if factors.has_bias:
        return dual @ factors.basis[:, -1:]
    outputs = dual @ factors.outputs.T
    return (outputs * ~zeros).sum(dim=-1, keepdim=True).sign()
