"""Clipped sums of per-example gradients, at little more than the price of a plain gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from gradveil._checks import NonFiniteError, all_finite
from gradveil._memory import is_out_of_memory
from gradveil._typing import Tensors

from .._gradient import GradientMessage
from ._isolated import Part, isolated
from ._metric import Metric, added, zeros
from ._norms import clipped_gradients, layer_squares, weighted_sum
from ._taps import UnbatchableError


def clipped_sum(
    message: GradientMessage,
    inputs: Tensor,
    metric: Metric,
    clip: float,
    *,
    wide: bool = False,
    seed: int | None = None,
) -> Tensors:
    """Σ_b g_b min(1, C / ‖g_b‖_Σ), with g_b the gradient of the loss of example b alone.

    One run gives what enters each layer and the signal that comes back, for each example by itself
    (`isolated`). Norms and the clipped sum both come from these numbers, so no weight gradient is
    computed twice, and none of an example where a layer's is a product.

    With `wide` examples are added up in float64, whatever the model's dtype: n of them are then off
    by no more than n 2⁻⁵³ of the sum of their sizes, in any order.
    """
    sums = zeros(message.parameters, torch.float64 if wide else None)
    try:
        for part in isolated(message, inputs, seed):
            _add(sums, part, metric, clip)
    except UnbatchableError:  # found out after the first part: from the start, one by one
        return clipped_sum(message, inputs, metric, clip, wide=wide, seed=seed)
    return sums


def _add(sums: Tensors, part: Part, metric: Metric, clip: float) -> None:
    """Put the clipped gradients of some examples to the sums."""
    _check_losses(part.losses)
    layers = [layer_squares(use, metric) for use in part.uses]
    squares = added((square for square, _ in layers), part.losses, len(part.losses))
    for name, gradients in part.others.items():
        squares = squares + metric.squares(name, gradients)
    factors = _factors(metric, squares, clip)
    for use, (_, weight_sum) in zip(part.uses, layers, strict=True):
        for name, g in clipped_gradients(use, factors.to(sums[use.weight].dtype), weight_sum):
            sums[name] += g
    for name, gradients in part.others.items():
        sums[name] += weighted_sum(factors.to(sums[name].dtype), gradients)


def _check_losses(losses: Tensor) -> None:
    if not all_finite(losses):
        raise NonFiniteError(
            f"The loss of each example should be finite. Found {int((~losses.isfinite()).sum())} of"
            f" {len(losses)} NaN or infinite. Nothing was sent; check the model's outputs and the"
            " targets. An example whose targets are all ignored has no mean loss: leave such"
            " examples out of the data, or use a sum over targets divided by a fixed number."
        )


def _factors(metric: Metric, squares: Tensor, clip: float) -> Tensor:
    broken = ~squares.isfinite()
    if bool(broken.any()):
        raise NonFiniteError(
            "The gradient of each example should be finite, and so should its square. Found"
            f" {int(broken.sum())} of {len(squares)} examples where it is not. Nothing was sent;"
            " leave them out, or lower the learning rate."
        )
    return metric.factor(squares, clip)


def each_example(one: Any, *rows: Tensor) -> Tensors:
    """`one(*row)` for each example, stacked; one by one where torch cannot batch it."""
    try:
        stacked: Tensors = vmap(one)(*rows)
        return stacked
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
    results = [one(*row) for row in zip(*rows, strict=True)]
    return {name: torch.stack([result[name] for result in results]) for name in results[0]}
