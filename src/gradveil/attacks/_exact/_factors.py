"""The gradient of a fully connected first layer as a product of two narrow factors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._typing import Tensors

from .._evidence import Call

_CLEAR, _WHOLE = 4.0, 1.3
"""How far the last singular value must stand above the largest one that noise explains: for ranks
below the batch size, and for the batch size itself."""
_GAP = 0.01
"""Of singular values: what falls by more than that after the last one is noise of any shape."""
_ROUNDING = 8.0
"""Rounding errors of a gradient, in units of the last place: sums over examples and units."""

_LEAST = 0.02
"""The least noise, in units of the last place of the largest singular value: larger entries have
larger rounding errors, which the mean over all entries does not show."""


@dataclass(frozen=True)
class Factors:
    """[∂L/∂W, ∂L/∂b] = Δ [X, 1] as `rows` · `basis`, in float64.

    Δ (units × examples) and the inputs X are known up to one invertible matrix: Δ = rows Q and
    [X, 1] = Q⁻¹ basis. The rows of `basis` are orthonormal, so that every entry of `rows` has noise
    of the same size. Units that no example reaches are left out.
    """

    rows: Tensor
    """Shape (units, rank)."""
    basis: Tensor
    """Shape (rank, inputs + 1), or (rank, inputs) for a layer without a bias."""
    outputs: Tensor
    """[W, b] basisᵀ, shape (units, rank): times p it is the outputs for [x, 1] = p basis."""
    noise: float
    """The standard deviation of the entries' errors, by what exceeds the rank."""
    units: Tensor
    """Which units of the layer are in `rows`: a mask."""
    has_bias: bool

    @property
    def rank(self) -> int:
        """How many different inputs the message shows."""
        return self.rows.shape[1]


def factors_of(sent: Tensors, call: Call, batch_size: int) -> Factors | None:
    """The factors; `None` where the message does not show a rank of at most the batch size."""
    gradient, layer = sent[call.weight].double(), call.layer.weight.detach().double()
    has_bias = call.layer.bias is not None
    if has_bias:
        gradient = torch.cat([gradient, sent[call.bias].double()[:, None]], dim=1)
        layer = torch.cat([layer, call.layer.bias.detach().double()[:, None]], dim=1)
    left, sizes, right = torch.linalg.svd(gradient, full_matrices=False)
    precision = torch.finfo(sent[call.weight].dtype).eps
    rank = _rank(sizes, gradient.shape, batch_size, precision)
    if rank is None:
        return None
    rows, basis = left[:, :rank] * sizes[:rank], right[:rank]
    least = _LEAST * precision * float(sizes[0])
    noise = max(_noise(sizes, gradient.shape, rank), least)
    reached = rows.norm(dim=1) > 10 * noise * rank**0.5
    return Factors(rows[reached], basis, (layer @ basis.T)[reached], noise, reached, has_bias)


def _rank(sizes: Tensor, shape: torch.Size, most: int, precision: float) -> int | None:
    """The largest rank up to `most` whose last singular value stands clear of what is left."""
    if len(sizes) <= most or float(sizes[0]) == 0:
        return None
    rounding = _ROUNDING * precision * float(sizes[0])
    for rank in range(most, 0, -1):
        edge = _noise(sizes, shape, rank) * (shape[0] ** 0.5 + shape[1] ** 0.5)
        clear = (_WHOLE if rank == most else _CLEAR) * edge
        if float(sizes[rank - 1]) > max(clear, rounding):
            rest = max(2 * edge, rounding, _GAP * float(sizes[rank - 1]))
            return rank if float(sizes[rank]) < rest else None
    return None


def _noise(sizes: Tensor, shape: torch.Size, rank: int) -> float:
    """The root mean square of what the first `rank` directions leave."""
    free = (shape[0] - rank) * (shape[1] - rank)
    return float((sizes[rank:].square().sum() / free).sqrt())
