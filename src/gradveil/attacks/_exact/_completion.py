"""The last few directions, from all others."""

import torch
from torch import Tensor

from gradveil._random import normal_like

from ._factors import Factors

_FEW = 5
_MOST, _WORK = 2000, 2e6
"""Random points to try: at most, and times rank³."""


def complete(factors: Factors, open_: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Directions of the last examples, shape (candidates, rank), and the units they leave inactive.

    With [x, 1] = p basis, p lies in the span of `open_`. If one is missing that is p itself, up to
    its length, hence also x, its outputs and its inactive units, whose null direction is q. If two
    are missing, p runs on a line on which each unit changes from inactive to active once: there are
    no more patterns than units to try. For up to five, random points are tried.

    Args:
        factors: Of the layer's gradient.
        open_: A basis of what is orthogonal to all directions found, shape (rank, missing).
        generator: Of the random points.
    """
    missing, rank = open_.shape[1], factors.rank
    if missing == 1:
        points = open_.T
    elif missing == 2:
        points = _along_the_line(factors, open_)
    else:
        count = min(_MOST, int(_WORK / rank**3)) if missing <= _FEW else 0
        points = normal_like(open_.new_empty(count, missing), generator) @ open_.T
    if factors.has_bias:
        points = points * (points @ factors.basis[:, -1:]).sign()
    else:
        points = torch.cat([points, -points])
    inactive = points @ factors.outputs.T < 0
    inactive = inactive[inactive.sum(dim=1) >= rank - 1].unique(dim=0)
    return _null_directions(factors.rows, inactive), inactive


def _along_the_line(factors: Factors, open_: Tensor) -> Tensor:
    """One point in each sector between the angles at which some unit's output is 0."""
    first, second = (factors.outputs @ open_).unbind(dim=1)
    angles = torch.atan2(-first, second).remainder(torch.pi).sort()[0]
    middles = torch.cat([(angles[1:] + angles[:-1]) / 2, angles[:1] / 2])
    return torch.stack([middles.cos(), middles.sin()], dim=1) @ open_.T


def _null_directions(rows: Tensor, inactive: Tensor) -> Tensor:
    """The least singular vectors of the rows of the inactive units."""
    rank = rows.shape[1]
    products = (rows[:, :, None] * rows[:, None, :]).flatten(1)
    normal = (inactive.to(rows.dtype) @ products).reshape(-1, rank, rank)
    least: Tensor = torch.linalg.eigh(normal)[1][:, :, 0]
    return least
