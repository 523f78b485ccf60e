"""How much of an input its features determine: the rank of their derivative, without its matrix."""

from collections.abc import Callable

import torch
from torch import Tensor

from gradveil._random import normal_like

ITERATIONS = 60
"""Of the least squares: enough for a condition number of about 10."""
PRECISE = 1e-4
"""The share of a direction that may be missing where it counts as recovered."""


def determined_share(
    features: Callable[[Tensor], Tensor], inputs: Tensor, generator: torch.Generator
) -> float:
    """The share of the directions in which inputs can change that their features show, 0 to 1.

    With J the derivative of the features h at an input and v ~ N(0, I), the least squares solution
    of J w = J v from w = 0 is the projection of v onto J's row space, so that

        E[1 - ‖w - v‖²/‖v‖²] = rank J / number of entries.

    A limited number of conjugate gradients finds w; a direction that hardly moves the features does
    not count, for nothing could be found along it. The mean over the inputs; where there are fewer
    features than entries, a bound from their number alone. Features without a derivative show
    nothing.

    >>> halves = lambda x: torch.cat([x[:, :2], x[:, :2]], 1)
    >>> round(determined_share(halves, torch.zeros(500, 4), torch.Generator().manual_seed(0)), 1)
    0.5
    """
    inputs = inputs.detach().requires_grad_()
    with torch.enable_grad():
        found = features(inputs)
        entries, count = inputs[0].numel(), found[0].numel()
        if count < entries:
            return count / entries
        if not found.requires_grad:
            return 0.0
        back = _Derivative(found, inputs)
    direction = normal_like(inputs.detach(), generator)
    return float(1 - _missing(back, direction).mean())


class _Derivative:
    """J and its transpose at fixed inputs, example by example; the graph is made once."""

    def __init__(self, found: Tensor, inputs: Tensor) -> None:
        self.found, self.inputs = found, inputs
        self.blank = torch.zeros_like(found, requires_grad=True)
        (self.pulled,) = torch.autograd.grad(found, inputs, self.blank, create_graph=True)

    def forward(self, direction: Tensor) -> Tensor:
        """J v, as the derivative of Jᵀ u with respect to u."""
        return torch.autograd.grad(self.pulled, self.blank, direction, retain_graph=True)[0]

    def backward(self, residual: Tensor) -> Tensor:
        """Jᵀ r."""
        return torch.autograd.grad(self.found, self.inputs, residual, retain_graph=True)[0]


def _missing(derivative: _Derivative, direction: Tensor) -> Tensor:
    """‖w - v‖²/‖v‖² of each input, by conjugate gradients on the normal equations."""
    gap, residual = direction.clone(), derivative.forward(direction)
    slope = derivative.backward(residual)
    step, power = slope, _squares(slope)
    for _ in range(ITERATIONS):
        missing = _squares(gap) / _squares(direction)
        if bool(((missing < PRECISE) | (power == 0)).all()):
            break
        moved = derivative.forward(step)
        rate = _ratio(power, _squares(moved))
        gap, residual = gap - _each(rate, gap) * step, residual - _each(rate, residual) * moved
        slope, before = derivative.backward(residual), power
        power = _squares(slope)
        step = slope + _each(_ratio(power, before), slope) * step
    return _squares(gap) / _squares(direction)


def _squares(values: Tensor) -> Tensor:
    return values.flatten(1).square().sum(1)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """0 where there is nothing left."""
    return torch.where(below > 0, above / below.clamp(min=torch.finfo(below.dtype).tiny), 0.0)


def _each(factor: Tensor, like: Tensor) -> Tensor:
    """One number for each example, in the shape of its values."""
    return factor.view(-1, *[1] * (like.dim() - 1))
