"""What a gradient says of the inputs of one stage whose outputs are known."""

import torch
from torch import Tensor
from torch.nn.functional import conv_transpose2d, fold, one_hot, unfold

from ._chain import Stage

_GROUPS = 9
"""Into how many parts the cells are split, which take their positions one after the other."""


class Equations:
    """The equations of a stage: the gradient of its kernel, and its outputs.

    Let a be the inputs and δ = ∂L/∂u, which is 0 but at the largest entry of each cell of the pool.
    With p(o, k) the position of that entry in cell k of channel o and d(o, k) the known size of δ,

        ∂L/∂W[o] = Σ_k d(o, k) · patch of a at p(o, k),    u[o, p(o, k)] = known,

    and u is less at all other positions of the cell. All images' cells stand beside each other.
    Given the positions both are linear in a; given a, the positions are plain to see.

    Args:
        stage: With these equations.
        outputs: Of the stage, shape (images, channels, rows, columns).
        slopes: ∂L/∂outputs.
        gradient: ∂L/∂W as it was sent.
        size: Rows and columns of the inputs.
    """

    def __init__(
        self, stage: Stage, outputs: Tensor, slopes: Tensor, gradient: Tensor, size: tuple[int, int]
    ) -> None:
        self.stage, self.size, self.count = stage.to(outputs), size, len(outputs)
        self.window = (int(gradient.shape[2]), int(gradient.shape[3]))
        self.gradient = gradient.to(outputs).flatten(1)
        rows, columns = stage.padding
        self.map = (
            size[0] + 2 * rows - self.window[0] + 1,
            size[1] + 2 * columns - self.window[1] + 1,
        )
        self.cells = _cells(self.count, self.map, stage.pool).to(outputs.device)
        positive, channels = outputs > 0, outputs.shape[1]
        seen = positive | (stage.slope > 0)
        values = torch.where(positive, outputs, outputs / (stage.slope or 1.0))
        sizes = slopes * torch.where(positive, 1.0, stage.slope) * self.stage.scale.view(-1, 1, 1)
        self.values, self.weights, self.seen = (
            part.transpose(0, 1).reshape(channels, -1) for part in (values, sizes, seen)
        )

    @property
    def unknowns(self) -> int:
        """The entries of the inputs in one channel, of all images."""
        return self.count * self.size[0] * self.size[1]

    @property
    def is_overdetermined(self) -> bool:
        """Whether the gradient fixes the inputs once the positions are known, with a margin."""
        return len(self.gradient) * self.window[0] * self.window[1] >= 1.5 * self.unknowns

    def even(self) -> Tensor:
        """The same probability for each position of a cell: (channels, cells, positions)."""
        shape = (*self.weights.shape, self.cells.shape[1])
        return self.weights.new_full(shape, 1 / shape[-1])

    def patches(self, inputs: Tensor) -> Tensor:
        """One column for each position of all images."""
        columns = unfold(inputs, self.window, padding=self.stage.padding)
        return columns.transpose(0, 1).flatten(1)

    def patches_transposed(self, columns: Tensor) -> Tensor:
        """The adjoint of `patches`."""
        columns = columns.unflatten(1, (self.count, -1)).transpose(0, 1)
        return fold(columns, self.size, self.window, padding=self.stage.padding)

    def linear(self, inputs: Tensor) -> Tensor:
        """U without its shift: (channels, positions)."""
        return self.stage.linear(inputs).transpose(0, 1).flatten(1)

    def linear_transposed(self, outputs: Tensor) -> Tensor:
        """The adjoint of `linear`."""
        maps = outputs.unflatten(1, (self.count, *self.map)).transpose(0, 1)
        return conv_transpose2d(maps, self.stage.kernel, padding=self.stage.padding)

    def gaps(self, inputs: Tensor) -> Tensor:
        """The known largest value of u minus u at each position of its cell."""
        u = self.linear(inputs) + self.stage.shift[:, None]
        return self.values[:, :, None] - u[:, self.cells]

    def spread(self, of_cells: Tensor) -> Tensor:
        """From (channels, cells, positions) to (channels, all positions), 0 outside of cells."""
        everywhere = of_cells.new_zeros(len(of_cells), self.count * self.map[0] * self.map[1])
        everywhere[:, self.cells.flatten()] = of_cells.flatten(1)
        return everywhere

    def delta(self, shares: Tensor) -> Tensor:
        """The expected δ when the positions have these probabilities."""
        return self.spread(self.weights[:, :, None] * shares)

    def pulled_back(self, shares: Tensor) -> Tensor:
        """∂L/∂a, as maps."""
        return self.linear_transposed(self.delta(shares) / self.stage.scale[:, None])

    def positions(self, inputs: Tensor) -> Tensor:
        """Where u is largest, as probabilities 0 and 1."""
        gaps = self.gaps(inputs)
        return one_hot(gaps.argmin(-1), gaps.shape[-1]).to(gaps)

    def estimate(self, inputs: Tensor, shares: Tensor, noise: Tensor, blur: Tensor) -> Tensor:
        """The positions' probabilities when entries of the gradient and of u have such errors.

        One mean-field sweep: each part of the cells in turn, the others as they are.
        """
        patches, gaps = self.patches(inputs), self.gaps(inputs) / blur
        at_values = -0.5 * gaps.square() - torch.special.log_ndtr(gaps)
        at_values = at_values * self.seen[:, :, None]
        of_cells = patches.T[self.cells]
        products = of_cells @ of_cells.transpose(1, 2)
        sizes = products.diagonal(dim1=1, dim2=2)
        residual, shares = self.gradient - self.delta(shares) @ patches.T, shares.clone()
        for part in _parts(len(self.cells), self.cells.device):
            weights, columns = self.weights[:, part, None], of_cells[part]
            mine = weights * shares[:, part]
            fit = (residual @ columns.flatten(0, 1).T).unflatten(1, columns.shape[:2])
            fit = fit + torch.einsum("oki,kij->okj", mine, products[part])
            likely = (weights * fit - 0.5 * weights.square() * sizes[part]) / noise**2
            shares[:, part] = torch.softmax(likely + at_values[:, part], -1)
            change = weights * shares[:, part] - mine
            residual = residual - change.flatten(1) @ columns.flatten(0, 1)
        return shares


def _parts(cells: int, device: torch.device) -> list[Tensor]:
    everything = torch.arange(cells, device=device)
    return [everything[first::_GROUPS] for first in range(min(_GROUPS, cells))]


def _cells(count: int, size: tuple[int, int], pool: int) -> Tensor:
    """The positions in each cell, (cells, pool²), images one after the other."""
    rows, columns = size[0] // pool, size[1] // pool
    places = torch.arange(count * size[0] * size[1]).view(count, *size)
    places = places[:, : rows * pool, : columns * pool]
    places = places.reshape(count, rows, pool, columns, pool).transpose(2, 3)
    return places.reshape(count * rows * columns, pool * pool)
