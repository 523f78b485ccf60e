"""What a gradient says of the inputs of one stage whose outputs are known, and its solution."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv_transpose2d, fold, one_hot, unfold

from gradveil._solve import conjugate_gradients

from ._descent import Watch
from ._model_layers import Stage


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

    def covariance(self, shares: Tensor) -> Tensor:
        """Of δ within each cell, summed over channels: (cells, positions, positions)."""
        sizes = self.weights[:, :, None]
        squares = (sizes.square() * shares).sum(0)
        expected = sizes * shares
        return torch.diag_embed(squares) - torch.einsum("oki,okj->kij", expected, expected)

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
        everything = torch.arange(len(self.cells), device=self.cells.device)
        for part in (everything[first::9] for first in range(min(9, len(everything)))):
            weights, columns = self.weights[:, part, None], of_cells[part]
            mine = weights * shares[:, part]
            fit = (residual @ columns.flatten(0, 1).T).unflatten(1, columns.shape[:2])
            fit = fit + torch.einsum("oki,kij->okj", mine, products[part])
            likely = (weights * fit - 0.5 * weights.square() * sizes[part]) / noise**2
            shares[:, part] = torch.softmax(likely + at_values[:, part], -1)
            change = weights * shares[:, part] - mine
            residual = residual - change.flatten(1) @ columns.flatten(0, 1)
        return shares


def _cells(count: int, size: tuple[int, int], pool: int) -> Tensor:
    """The positions in each cell, (cells, pool²), images one after the other."""
    rows, columns = size[0] // pool, size[1] // pool
    places = torch.arange(count * size[0] * size[1]).view(count, *size)
    places = places[:, : rows * pool, : columns * pool]
    places = places.reshape(count, rows, pool, columns, pool).transpose(2, 3)
    return places.reshape(count * rows * columns, pool * pool)


EXACT = 1e-4
"""The relative residual of the worst channel's equations below which the inputs are exact."""


class Kronecker(NamedTuple):
    """A Gaussian of maps: the covariance of channels times that of places."""

    mean: Tensor
    channels: Tensor
    places: Tensor

    @classmethod
    def fit(cls, maps: Tensor) -> "Kronecker":
        """Of samples (samples, channels, rows, columns); the places' covariance first."""
        rows = maps.flatten(2)
        mean = rows.mean(0)
        rows = rows - mean
        samples, channels, places = rows.shape
        across = _ridged(torch.einsum("ncp,ncq->pq", rows, rows) / (samples * channels), 1e-3)
        whitened = rows @ torch.linalg.inv(across)
        between = _ridged(torch.einsum("ncp,ndp->cd", whitened, rows) / (samples * places), 1e-4)
        return cls(mean.unflatten(1, maps.shape[2:]), between, across)

    @property
    def deviation(self) -> Tensor:
        """The standard deviation of an entry, over all of them."""
        return (self.channels.diagonal().mean() * self.places.diagonal().mean()).sqrt()

    def inverse(self) -> "Kronecker":
        """With the precisions in place of the covariances."""
        return Kronecker(self.mean, torch.linalg.inv(self.channels), torch.linalg.inv(self.places))

    def multiply(self, maps: Tensor) -> Tensor:
        """The covariance times each of some maps."""
        return (self.channels @ maps.flatten(2) @ self.places).view_as(maps)


@dataclass(frozen=True)
class Cooling:
    """How the errors that are allowed fall, from first to last, in units of what is expected.

    At first the positions are open and the answer is near the mean of all maps; as the errors
    fall, positions settle one after the other (deterministic annealing).

    >>> Cooling(steps=20).noise
    (300.0, 0.1)
    """

    steps: int = 40
    noise: tuple[float, float] = (300.0, 0.1)
    """Of the gradient's entries."""
    blur: tuple[float, float] = (1.0, 0.03)
    """Of the known values of u."""
    products: int = 15

    def at_share(self, share: float) -> tuple[float, float]:
        """Both errors when this share of the steps is done."""
        return _between(self.noise, share), _between(self.blur, share)


def search_inputs(equations: Equations, prior: Kronecker, cooling: Cooling, watch: Watch) -> Tensor:
    """The positions' probabilities at the end of expectation-maximisation with falling errors."""
    noise, blur = units(equations, prior.deviation)
    inputs = prior.mean.expand(equations.count, *prior.mean.shape)
    shares, precision = equations.even(), prior.inverse()
    for step in range(cooling.steps):
        if watch.is_over():
            break
        factors = cooling.at_share(step / max(1, cooling.steps - 1))
        errors = (noise * factors[0], blur * factors[1])
        if step > 0:
            shares = equations.estimate(inputs, shares, *errors)
        inputs = _most_likely(equations, shares, errors, (prior, precision), inputs, cooling)
    return shares


def units(equations: Equations, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """What an error of one standard deviation in all inputs does to the gradient and to u."""
    noise = equations.weights.square().sum(1).mean().sqrt() * deviation
    return noise, equations.stage.kernel.flatten(1).norm(dim=1).mean() * deviation


def _most_likely(
    equations: Equations,
    shares: Tensor,
    errors: tuple[Tensor, Tensor],
    priors: tuple[Kronecker, Kronecker],
    start: Tensor,
    cooling: Cooling,
) -> Tensor:
    """The inputs that minimise the expected misfit plus the prior's energy, by a few products."""
    (noise, blur), (prior, precision) = errors, priors
    delta, blocks = equations.delta(shares), equations.covariance(shares)
    trust = equations.spread(shares * equations.seen[:, :, None]) / blur**2
    known = equations.spread(shares * (equations.seen * equations.values)[:, :, None]) / blur**2

    def multiply(rows: Tensor) -> Tensor:
        maps = rows.view(start.shape)
        columns = equations.patches(maps)
        pulled = (columns @ delta.T) @ delta + _within_cells(equations, columns, blocks)
        result = equations.patches_transposed(pulled) / noise**2 + precision.multiply(maps)
        result = result + equations.linear_transposed(trust * equations.linear(maps))
        return result.reshape(rows.shape)

    right = equations.patches_transposed(equations.gradient.T @ delta) / noise**2
    right = right + precision.multiply(prior.mean.expand_as(start))
    shift = equations.stage.shift[:, None]
    right = right + equations.linear_transposed(known - trust * shift)
    residual = right.reshape(1, -1) - multiply(start.reshape(1, -1))
    step, _ = conjugate_gradients(
        multiply,
        residual,
        lambda rows: prior.multiply(rows.view(start.shape)).reshape(rows.shape),
        1e-3,
        cooling.products,
    )
    return start + step.view(start.shape)


def _within_cells(equations: Equations, columns: Tensor, blocks: Tensor) -> Tensor:
    result = torch.zeros_like(columns)
    moved = torch.einsum("fki,kij->fkj", columns[:, equations.cells], blocks)
    result[:, equations.cells.flatten()] = moved.flatten(1)
    return result


def solve_inputs(equations: Equations, shares: Tensor, rounds: int = 6) -> tuple[Tensor, float]:
    """The inputs by least squares that sets wrong channels aside, and the worst residual.

    A channel whose positions are all right has a residual of 0, one with a wrong position a large
    one. Reweighted least squares (channels weighted by 1/residual) therefore follows the right
    ones, and its solution shows the positions in the others.
    """
    design = _design(equations)
    gradient = equations.gradient.unflatten(1, (-1, math.prod(equations.window))).transpose(1, 2)
    sizes = gradient.flatten(1).norm(dim=1)
    sizes = sizes.clamp(min=1e-3 * float(sizes.mean()))
    positions, inputs, worst = shares, None, math.inf
    for _ in range(rounds):
        hard = torch.nn.functional.one_hot(positions.argmax(-1), positions.shape[-1])
        matrix = torch.einsum("op,qsp->osq", equations.delta(hard.to(design)), design)
        solution, residuals = _reweighted(matrix, gradient, sizes)
        maps = solution.T.unflatten(1, (equations.count, *equations.size)).transpose(0, 1)
        inputs, worst = maps.contiguous(), float((residuals / sizes).max())
        if worst < EXACT / 10 or equations.cells.shape[1] == 1:
            break
        positions = equations.positions(inputs)
    assert inputs is not None
    return inputs, worst


def _reweighted(
    matrix: Tensor, right: Tensor, sizes: Tensor, rounds: int = 15
) -> tuple[Tensor, Tensor]:
    """Minimise Σ_o ‖matrix_o x - right_o‖; also the norms that are left."""
    weights = torch.ones_like(sizes)
    for _ in range(rounds):
        normal = torch.einsum("o,osp,osq->pq", weights, matrix, matrix)
        pulled = torch.einsum("o,osp,osc->pc", weights, matrix, right)
        solution = torch.linalg.solve(_ridged(normal, 1e-12), pulled)
        left = (right - matrix @ solution).flatten(1).norm(dim=1)
        floor = 1e-7 * sizes.mean() + 1e-3 * left.median()
        weights = 1 / (left.square() + floor.square()).sqrt()
        weights = weights / weights.max()
    return solution, left


def _design(equations: Equations) -> Tensor:
    """1 where an entry of the inputs is at that place of the patch at a position.

    Shape (entries, places in the patch, positions), images one after the other.
    """
    like, places = equations.gradient, math.prod(equations.size)
    single = torch.eye(places).to(like).view(places, 1, *equations.size)
    columns = unfold(single, equations.window, padding=equations.stage.padding)
    images = torch.eye(equations.count).to(like)
    return torch.einsum("mn,esp->mesnp", images, columns).flatten(3).flatten(0, 1)


def _ridged(matrix: Tensor, share: float) -> Tensor:
    size = share * matrix.diagonal().mean()
    return matrix + size * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def _between(ends: tuple[float, float], share: float) -> float:
    return ends[0] * math.exp(share * math.log(ends[1] / ends[0]))
