"""Squared sensitivities that are too small for a float."""

import torch
from torch import Tensor

from gradveil._typing import Tensors

REACH = 1e4
"""Times the least root: below that, an entry's square may have been lost."""


def not_lost(squares: Tensors, values: Tensors) -> Tensors:
    """The same squares, with the least positive number in the place of those that are lost.

    0 means that an entry says nothing of the inputs, so that it needs no noise. A confident model
    has gradients of 1e-25, with sensitivities in proportion, whose squares are 0 in float32: sent
    as they are, they would tell everything.
    """
    return {name: _not_lost(square, values[name]) for name, square in squares.items()}


def _not_lost(square: Tensor, value: Tensor) -> Tensor:
    least = torch.finfo(square.dtype).tiny
    lost = (square == 0) & (value != 0)
    if not bool(lost.any()):
        return square
    return square.masked_fill(lost & (value.abs() < REACH * least**0.5), least)
