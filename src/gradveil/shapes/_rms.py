"""A shape for differentially private noise, from the gradients of public examples."""

import torch
from torch import Tensor

from gradveil._checks import check_choice, check_inputs, check_positive, check_ratio
from gradveil._typing import Tensors
from gradveil.messages import GradientMessage, example_gradients

from ._shape import Factors, Shape

GRANULARITIES = ("entry", "rows and columns", "layer")


def rms_shape(
    message: GradientMessage,
    inputs: Tensor,
    *,
    power: float = 1.0,
    granularity: str = "rows and columns",
    least: float = 0.05,
) -> Shape:
    """r_i ∝ (E g_bi²)^(power/2) over public examples b: as much noise as there is gradient.

    power = 1 minimises the noise Σ_i Σ_ii beside the clipping norm E Σ_i g_bi² / Σ_ii (their
    product is least for Σ_ii ∝ √E g_bi²). power = 2 whitens: every entry then has the same share
    in the norm. For `PrivateNoise`, whose shape must not depend on private data.

    Args:
        message: The gradient of public examples.
        inputs: These examples.
        power: Of the root mean square.
        granularity: "entry"; "rows and columns", the product of the means over columns and over
            rows, which few examples determine; or "layer", one level for each tensor.
        least: No root mean square is taken to be below this share of that of its tensor, and no
            tensor's below this share of that of all.

    >>> model = torch.nn.Linear(2, 1)
    >>> message = GradientMessage(model, lambda o, _: o.sum(), None)
    >>> shape = rms_shape(message, torch.tensor([[3.0, 1.0], [3.0, -1.0]]), granularity="entry")
    >>> [round(float(f), 3) for f in shape.factors["weight"][0].flatten()]
    [3.0, 1.0]
    """
    check_inputs(inputs)
    check_positive(power, "power")
    check_choice(granularity, "granularity", GRANULARITIES)
    check_positive(least, "least")
    check_ratio(least, "least")
    squares = mean_squares(message, inputs)
    entries = sum(s.numel() for s in squares.values())
    whole = float(sum(float(s.sum(dtype=torch.float64)) for s in squares.values())) / entries
    floor = least**2 * max(whole, torch.finfo(torch.float32).tiny)
    factors = {}
    for name, square in squares.items():
        mean = square.mean().clamp(min=floor)
        parts = _parts(square.clamp(min=least**2 * mean), mean, granularity)
        factors[name] = tuple(part ** (power / 2) for part in parts)
    return Shape(factors)


def mean_squares(message: GradientMessage, inputs: Tensor) -> Tensors:
    """E g_bi² over the examples."""
    sums: Tensors = {}
    with torch.no_grad():
        for gradients in example_gradients(message, inputs):
            for name, g in gradients.items():
                square = g.square().sum(0) / len(inputs)
                sums[name] = sums[name] + square if name in sums else square
    return sums


def _parts(square: Tensor, mean: Tensor, granularity: str) -> Factors:
    """Factors whose product stands for the squares."""
    if granularity == "layer" or square.dim() == 0:
        return (mean.reshape((1,) * square.dim()),)
    if granularity == "entry" or square.dim() < 2:
        return (square,)
    others = tuple(range(1, square.dim()))
    rows, rest = square.mean(others, keepdim=True), square.mean(0, keepdim=True)
    return rows / square.mean(), rest
