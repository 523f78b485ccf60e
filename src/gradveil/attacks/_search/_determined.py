"""How much of an input its features determine: the rank of their derivative, without its matrix."""

from collections.abc import Callable

import torch
from torch import Tensor

from gradveil._random import normal_like
from gradveil._solve import conjugate_gradients

ITERATIONS = 60
"""Of the least squares: enough for a condition number of about 10."""


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
        multiply = _normal_matrix(found, inputs)
    directions = normal_like(inputs.detach(), generator).flatten(1)
    seen, _ = conjugate_gradients(
        multiply, multiply(directions), tolerance=1e-3, max_steps=ITERATIONS
    )
    missing = (seen - directions).square().sum(1) / directions.square().sum(1)
    return float(1 - missing.mean())


def _normal_matrix(found: Tensor, inputs: Tensor) -> Callable[[Tensor], Tensor]:
    """v to JᵀJ v, a row for each input; the graph is made once.

    J v is the derivative of Jᵀu with respect to u.
    """
    blank = torch.zeros_like(found, requires_grad=True)
    (pulled,) = torch.autograd.grad(found, inputs, blank, create_graph=True)

    def multiply(directions: Tensor) -> Tensor:
        shaped = directions.view_as(inputs)
        (pushed,) = torch.autograd.grad(pulled, blank, shaped, retain_graph=True)
        (back,) = torch.autograd.grad(found, inputs, pushed, retain_graph=True)
        return back.flatten(1)

    return multiply
