"""The logarithm of an optimal shape, split into levels: tensors, rows, columns, entries."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._tensors import total

LEAST = 1e-4
"""The least of a mean square that counts, over the mean of its tensor: a dead unit of the public
examples may live on private ones."""


class Levels(NamedTuple):
    """log r of one tensor, as a matrix of its rows, is the sum of four parts.

    The first is one number, the second has one for each row, the third one for each column, the
    last one for each entry. r is √(S / G) of mean squares over all that a level does not tell
    apart.
    """

    tensor: Tensor
    rows: Tensor
    columns: Tensor
    entries: Tensor


NAMES = Levels._fields


def levels_of(slopes: Mapping[str, Tensor], squares: Mapping[str, Tensor]) -> dict[str, Levels]:
    """The levels of √(S_i / G_i), tensor by tensor, relative to the whole message."""
    whole = _half_log(_mean(slopes), _mean(squares))
    return {name: _levels(slope, squares[name], whole) for name, slope in slopes.items()}


def as_matrix(tensor: Tensor) -> Tensor:
    """The rows of a tensor's first dimension; vectors and numbers are one column."""
    return tensor.reshape(tensor.shape[0] if tensor.dim() else 1, -1)


def _levels(slope: Tensor, square: Tensor, whole: Tensor) -> Levels:
    s, g = _relative(as_matrix(slope)), _relative(as_matrix(square))
    tensor = _half_log(slope.mean(dtype=torch.float64), square.mean(dtype=torch.float64)) - whole
    rows = _half_log(s.mean(1, keepdim=True), g.mean(1, keepdim=True))
    if s.shape[1] == 1:
        nothing = torch.zeros_like(rows)
        return Levels(tensor.to(s.dtype), rows, nothing[:1], nothing)
    columns = _half_log(s.mean(0, keepdim=True), g.mean(0, keepdim=True))
    return Levels(tensor.to(s.dtype), rows, columns, _half_log(s, g) - rows - columns)


def _relative(matrix: Tensor) -> Tensor:
    """Over its mean, and not below `LEAST`."""
    mean = matrix.mean(dtype=torch.float64).clamp(min=1e-300)
    return (matrix / mean).to(matrix.dtype).clamp(min=LEAST)


def _half_log(slope: Tensor, square: Tensor) -> Tensor:
    """log √(S / G); 0 where both are 0."""
    least = torch.finfo(slope.dtype).tiny
    return (slope.clamp(min=least).log() - square.clamp(min=least).log()) / 2


def _mean(tensors: Mapping[str, Tensor]) -> Tensor:
    size = sum(tensor.numel() for tensor in tensors.values())
    return total(tensors.values()) / max(size, 1)
