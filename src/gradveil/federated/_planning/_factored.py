"""A shape of rows and columns, from moments."""

from math import exp, log

from torch import Tensor

from gradveil.plans import Shape
from gradveil.sensitivity import Moments

FLOOR = 1e-4
"""The least mean square of a row or a column, over the mean of its tensor."""

SMALL = 64
"""Tensors of fewer entries get one number."""


def factored_shape(moments: Moments) -> Shape:
    """r_i = tensor · row · column: √(mean s² / mean g²) of each, rows and columns relative.

    Relative means: over the mean of the tensor. A tensor without values or sensitivities gets the
    geometric mean of the others.
    """
    ratios = {
        name: _ratio(moments.known_squared_sensitivities[name], square)
        for name, square in moments.squared_values.items()
    }
    known = [log(float(ratio)) for ratio in ratios.values() if ratio is not None]
    usual = exp(sum(known) / len(known)) if known else 1.0
    return Shape(
        {
            name: _factors(moments.known_squared_sensitivities[name], square, ratios[name], usual)
            for name, square in moments.squared_values.items()
        }
    )


def _ratio(slopes: Tensor, squares: Tensor) -> Tensor | None:
    """√(mean s² / mean g²) of a tensor; `None` where one of both is 0."""
    if not squares.numel() or not (float(slopes.mean()) > 0 and float(squares.mean()) > 0):
        return None
    return (slopes.double().mean() / squares.double().mean()).sqrt()


def _factors(
    slopes: Tensor, squares: Tensor, ratio: Tensor | None, usual: float
) -> tuple[Tensor, ...]:
    whole = squares.new_full((1,) * squares.dim(), usual if ratio is None else float(ratio))
    if ratio is None or squares.dim() < 2 or squares.numel() < SMALL:
        return (whole,)
    rows = _means(slopes, 1) / _means(squares, 1)
    columns = _means(slopes, 0) / _means(squares, 0)
    shape = (len(squares), *(1,) * (squares.dim() - 1))
    return (
        whole * rows.sqrt().to(squares).view(shape),
        columns.sqrt().to(squares).view(1, *squares.shape[1:]),
    )


def _means(tensor: Tensor, dim: int) -> Tensor:
    """Means over the rows (1) or the columns (0) of a tensor, over the mean of all of it."""
    means = tensor.double().flatten(1).mean(dim)
    return (means / means.mean()).clamp(min=FLOOR)
