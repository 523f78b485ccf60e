"""The direction of which a message tells most."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradveil._random import generator_or_fresh, normal_like

from ._bound_case import BoundCase
from ._fisher import FisherInformation, MeanInformation

PRODUCTS, ENOUGH = 40, 1e-4
"""At most so many products; fewer where the residual is this share of the value."""


def largest_information(
    cases: Sequence[BoundCase], generator: torch.Generator | None = None
) -> float:
    """The largest eigenvalue of J_D, the mean information over batches: λ.

    Whoever sees the inputs themselves with noise of 1 / √λ knows at least as much of every
    direction. That is the level for `LearnedPrior.measure`.

    Args:
        cases: Batches of one shape, each with its message and its mechanism.
        generator: For the direction to start from.

    >>> from gradveil import BoundCase, Mechanism
    >>> case = BoundCase(lambda x: {"w": 2 * x.sum(0)}, torch.ones(1, 2), Mechanism(std=1.0))
    >>> round(largest_information([case], torch.Generator().manual_seed(0)), 3)
    4.0
    """
    information = MeanInformation([FisherInformation(*case) for case in cases])
    return largest_eigenvalue(information, generator_or_fresh(generator))


def largest_eigenvalue(information: MeanInformation, generator: torch.Generator) -> float:
    """By Lanczos' three-term recurrence: from below, and nearly reached.

    What grows slowly need not be near its limit: a start has a share of 1 / n in the direction that
    is looked for. So it is the residual that has to be small.
    """
    blank = torch.empty(1, information.size, dtype=torch.float64)
    row: Tensor = normal_like(blank, generator).to(information.device)
    row, last, off = row / row.norm(), torch.zeros_like(row), 0.0
    middle: list[float] = []
    beside: list[float] = []
    value = 0.0
    for _ in range(min(PRODUCTS, information.size)):
        product = information(row) - off * last
        middle.append(float((product * row).sum()))
        product -= middle[-1] * row
        off = float(product.norm())
        values, vectors = torch.linalg.eigh(_tridiagonal(middle, beside))
        value = float(values[-1])
        if not off * abs(float(vectors[-1, -1])) > ENOUGH * value:
            break
        beside.append(off)
        row, last = product / off, row
    return value


def _tridiagonal(middle: list[float], beside: list[float]) -> Tensor:
    off = torch.tensor(beside, dtype=torch.float64).diag(1)
    return torch.tensor(middle, dtype=torch.float64).diag() + off + off.T
