"""Spans: which vectors can have been inputs of a linear map, by its gradient."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ._linear_inputs import LinearInput

ROUNDING = 3e-6
"""Singular values below this share of the largest are rounding."""


class Span(NamedTuple):
    """The row space of ∂L/∂W = Σ_n δ_n x_nᵀ: all inputs x_n lie in it, if the δ_n are independent.

    That takes fewer inputs than the layer has inputs and outputs.
    """

    basis: Tensor
    """Orthonormal rows, in float64."""

    @property
    def rank(self) -> int:
        """Its dimension."""
        return len(self.basis)

    @property
    def says_something(self) -> bool:
        """Whether there are vectors outside of it."""
        return 0 < self.rank < self.basis.shape[1]

    def distances(self, vectors: Tensor) -> Tensor:
        """The share of each vector, by its last axis, that is outside of the span: 0 to 1."""
        vectors = vectors.double()
        sizes = vectors.square().sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
        inside = (vectors @ self.basis.T).square().sum(-1)
        return (1 - inside / sizes).clamp(min=0).sqrt()


def span_of(
    inputs: LinearInput, sent: Mapping[str, Tensor], rows: int, noise: Mapping[str, Tensor] | float
) -> Span:
    """The span of what entered, from the gradients of all maps that read it.

    With noise of standard deviation σ on an m × n matrix, singular values up to about σ (√m + √n)
    are noise; directions below that are left out.

    Args:
        inputs: The maps.
        sent: What was sent.
        rows: How many inputs there were, which is the largest rank.
        noise: Standard deviations, by name or one for all.
    """
    gradients, levels = [], []
    for name, transposed in inputs.weights:
        gradient = sent[name].double()
        gradients.append(gradient.T if transposed else gradient)
        level = noise[name] if isinstance(noise, Mapping) else torch.tensor(noise)
        levels.append(float(level.double().square().mean()) * gradient.numel())
    matrix = torch.cat(gradients)
    edge = (sum(levels) / matrix.numel()) ** 0.5 * sum(size**0.5 for size in matrix.shape)
    _, sizes, vectors = torch.linalg.svd(matrix, full_matrices=False)
    rank = int((sizes > max(edge, ROUNDING * float(sizes[0]))).sum())
    return Span(vectors[: min(rank, rows)])
