"""The mean over examples of squared gradients: the diagonal of the empirical Fisher matrix."""

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.messages import Message, separates

from ._derivatives import Mode, row_derivatives
from ._estimator import chunk_size

CHUNK = 2**22
"""Entries of the gradients of single examples that are in memory at once, in float64."""


def example_squares(
    message: Message, inputs: Tensor, values: Tensors, known: Tensors | None = None
) -> Tensors:
    """h_i = E_b g_{b,i}², with g_b the gradient of the loss of example b alone.

    The diagonal of the empirical Fisher matrix, which stands for that of the loss's second
    derivative. A message of a mean over B examples is Σ_b c_b with c_b = g_b / B, so that
    h = B Σ_b c_b². For a loss that is a sum, h = Σ_b c_b²: the curvature of that sum.

    Args:
        message: A sum over examples.
        inputs: The batch.
        values: The message at the batch, for the precision and the shape of what is returned.
        known: Σ_b c_b², where an estimator has found it.
    """
    if not separates(message, inputs):
        raise ValueError(
            "Parameter `message` should be a sum over examples where gradients of single examples"
            f" are taken. Found a {type(message).__name__} whose examples interact (BatchNorm in"
            " training mode, dropout, local update steps, or a loss that compares examples). Use"
            " utility='variance', or match='utility' in an audit, which need none."
        )
    sums = _summed(message, inputs, values) if known is None else known
    examples = 1 if getattr(message, "reduction", None) == "sum" else len(inputs)
    return {name: _as(examples * square, values[name]) for name, square in sums.items()}


def _summed(message: Message, inputs: Tensor, values: Tensors) -> Tensors:
    """Σ_b c_b², some examples at a time."""
    delta = message.output_gradient(inputs)  # type: ignore[attr-defined]
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in values.items()}
    size = chunk_size(values, CHUNK)
    for part in zip(inputs.split(size), delta.split(size), strict=True):
        for name, gradient in _gradients(message, *part).items():
            sums[name] += gradient.double().square().sum(0)
    return sums


def _gradients(message: Message, inputs: Tensor, delta: Tensor) -> Tensors:
    """c_b for each example, stacked."""
    gradient = message.example_gradient  # type: ignore[attr-defined]

    def alone(_: Mode, example: Tensor, output_gradient: Tensor) -> Tensors:
        gradients: Tensors = gradient(example, output_gradient)
        return gradients

    return row_derivatives(alone, inputs, delta)


def _as(square: Tensor, like: Tensor) -> Tensor:
    """In another precision, in which what is above 0 stays above 0."""
    limits = torch.finfo(like.dtype)
    return (square.clamp(limits.tiny, limits.max) * square.sign()).to(like.dtype)
