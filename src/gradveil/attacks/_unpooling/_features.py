"""The inputs of a stage from the gradient of its kernel: soft positions first, then exact ones."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import unfold

from gradveil._solve import conjugate_gradients

from .._search import Watch
from ._equations import Equations

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
    delta, blocks = equations.delta(shares), _blocks(equations, shares)
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


def _blocks(equations: Equations, shares: Tensor) -> Tensor:
    """The covariance of δ within each cell, summed over channels: (cells, positions, positions)."""
    sizes = equations.weights[:, :, None]
    expected = sizes * shares
    squares = (sizes.square() * shares).sum(0)
    return torch.diag_embed(squares) - torch.einsum("oki,okj->kij", expected, expected)


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
    """1 where an entry of the inputs is at that place of the patch at a position."""
    places = math.prod(equations.size)
    like = equations.gradient
    single = torch.eye(places, dtype=like.dtype, device=like.device)
    columns = unfold(
        single.view(places, 1, *equations.size),
        equations.window,
        padding=equations.stage.padding,
    )
    return _beside(columns, equations.count)


def _beside(columns: Tensor, count: int) -> Tensor:
    """(entries, places in the patch, positions) of one image, block by block for all images."""
    entries, places, positions = columns.shape
    all_images = columns.new_zeros(count, entries, places, count, positions)
    for image in range(count):
        all_images[image, :, :, image] = columns
    return all_images.reshape(count * entries, places, count * positions)


def _ridged(matrix: Tensor, share: float) -> Tensor:
    size = share * matrix.diagonal().mean()
    return matrix + size * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def _between(ends: tuple[float, float], share: float) -> float:
    return ends[0] * math.exp(share * math.log(ends[1] / ends[0]))
