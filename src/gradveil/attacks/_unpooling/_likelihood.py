"""How likely the positions of one channel are when the inputs are known up to a Gaussian."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Inputs(NamedTuple):
    """Mean m and covariance Σ of the inputs' places, and of the patch at each position.

    Columns of m are independent. The last place is always 0 and stands for padding.
    """

    places: Tensor
    """The place of each entry of the patch: (cells, positions, entries)."""
    mean: Tensor
    covariance: Tensor
    patches: Tensor
    spreads: Tensor

    @classmethod
    def given(cls, places: Tensor, precision: Tensor, pulled: Tensor) -> "Inputs":
        """From the precision and from its product with the mean."""
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
        mean = pad(covariance @ pulled, (0, 0, 0, 1))
        covariance = pad(covariance, (0, 1, 0, 1))
        spreads = covariance[places[..., :, None], places[..., None, :]]
        return cls(places, mean, covariance, mean[places], spreads)


class Fit(NamedTuple):
    """How the rows V of a channel explain its gradient g: g - V m, V Σ, and V Σ Vᵀ + error."""

    residual: Tensor
    across: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, rows: Tensor, gradient: Tensor, inputs: Inputs, error: Tensor) -> "Fit":
        """Of rows without the place of the padding."""
        rows = pad(rows, (0, 1))
        across = rows @ inputs.covariance
        covariance = across @ rows.T + torch.diag(error.expand(len(rows)))
        return cls(gradient - rows @ inputs.mean, across, covariance)

    def moved(self, inputs: Inputs, cell: int, position: int, size: Tensor) -> "Fit":
        """With `size` more at one position of a cell."""
        places = inputs.places[cell, position]
        mixed = self.across[:, places]
        spread = size.square() * inputs.spreads[cell, position]
        return Fit(
            self.residual - size * inputs.patches[cell, position],
            self.across + size * inputs.covariance[places],
            self.covariance + size * (mixed + mixed.T) + spread,
        )

    def scores(self, inputs: Inputs, cell: int, size: Tensor) -> Tensor:
        """The log-likelihood of g with `size` more at each position of a cell, up to a constant."""
        mixed = self.across[:, inputs.places[cell]].transpose(0, 1)
        spread = size.square() * inputs.spreads[cell]
        covariance = self.covariance + size * (mixed + mixed.transpose(1, 2)) + spread
        residual = self.residual - size * inputs.patches[cell]
        root = torch.linalg.cholesky(covariance)
        white = torch.linalg.solve_triangular(root, residual, upper=False)
        sizes = root.diagonal(dim1=1, dim2=2).log().sum(1)
        total: Tensor = -0.5 * white.square().sum((1, 2)) - residual.shape[2] * sizes
        return total
