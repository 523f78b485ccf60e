"""Derivatives along many directions, for every layer and loss that PyTorch can differentiate."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from gradveil._memory import is_out_of_memory
from gradveil._typing import Tensors

Points = tuple[Tensor, ...]
Mode = Callable[[Callable[..., Tensors], Points, Points], Tensors]
"""(f, x, v) to ∂_v f(x)."""


def row_derivatives(along: Callable[..., Tensors], *rows: Tensor) -> Tensors:
    """`along(mode, *row)` for each row, stacked: tensors of shape (rows, *shape).

    The mode of differentiation is forward mode; where PyTorch lacks it for a layer or a loss (or
    fails at it, as for the mean of `mse_loss`), reverse mode applied twice, which is slower.
    """
    try:
        return _each(partial(along, forward), rows)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return _each(partial(along, twice_backward), rows)


def forward(function: Callable[..., Tensors], point: Points, tangent: Points) -> Tensors:
    """∂_v f(x) beside f(x)."""
    derivative: Tensors = jvp(function, point, tangent)[1]
    return derivative


def twice_backward(function: Callable[..., Tensors], point: Points, tangent: Points) -> Tensors:
    """J v as the transpose of the linear map u ↦ Jᵀu, taken at u = 0 as well as anywhere."""
    values, pull_back = vjp(function, *point)[:2]
    zeros = {name: torch.zeros_like(value) for name, value in values.items()}
    derivative: Tensors = vjp(pull_back, zeros)[1](tangent)[0]
    return derivative


def _each(function: Callable[..., Tensors], rows: Points) -> Tensors:
    if len(rows[0]) > 1:  # one row spares the vmap level, and layers that vmap does not know
        try:
            stacked: Tensors = vmap(function, randomness="same")(*rows)
            return stacked
        except RuntimeError as error:  # a layer that does not batch, BatchNorm's statistics
            if is_out_of_memory(error):
                raise
    results = [function(*row) for row in zip(*rows, strict=True)]
    return {name: torch.stack([result[name] for result in results]) for name in results[0]}
