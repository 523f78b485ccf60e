"""From one direction for each example to the examples themselves."""

from typing import NamedTuple

import torch
from torch import Tensor

from ._candidates import zeros_of
from ._factors import Factors


class Batch(NamedTuple):
    """The different inputs of a batch and the gradients at their outputs."""

    inputs: Tensor
    """Shape (rank, inputs); without a bias in the layer, up to a positive factor each."""
    deltas: Tensor
    """Shape (rank, units that any of them reaches), up to the inverse factors."""
    agreement: Tensor
    """For each input the share of units whose gradient is 0 just where their output is not above 0."""


def assemble(factors: Factors, zeros: Tensor) -> Batch | None:
    """The batch whose gradients are 0 in these units; `None` where that determines none.

    The direction of each example is the one that fits its zeros best, q = argmin ‖rows_Z q‖. With
    all of them in Q, [X, 1] = Q⁻¹ basis up to the length of each row, which the 1 fixes.

    Args:
        factors: Of the layer's gradient.
        zeros: For each example the units that it does not reach, shape (rank, units).
    """
    directions = torch.stack([torch.linalg.svd(factors.rows[own])[2][-1] for own in zeros])
    dual, info = torch.linalg.inv_ex(directions.T)
    if int(info) != 0 or not bool(torch.isfinite(dual).all()):
        return None
    outputs, found = dual @ factors.outputs.T, dual @ factors.basis
    active = ~zeros_of(factors, directions)
    if factors.has_bias:
        scale = found[:, -1:]
        found = found[:, :-1]
    else:
        scale = (outputs * active).sum(dim=1, keepdim=True).sign()
    if bool((scale == 0).any()):
        return None
    agreement = ((outputs / scale > 0) == active).to(found.dtype).mean(dim=1)
    deltas = directions @ factors.rows.T * scale
    return Batch(found / scale, deltas, agreement)
