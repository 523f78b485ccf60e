"""Sampling the positions of a pool, the inputs of its stage being integrated out."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ._descent import Watch
from ._unpool_equations import EXACT, Equations, Kronecker, solve_inputs, units


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


_NOISE = (0.03, 0.003)
"""The least error of a channel's equations, from the first sweep to the last, in units of what is
expected. The largest one is 2."""
_EVERY = 2
"""After so many sweeps the exact solution is tried."""


class Sampler:
    """Gibbs sampling of positions, channel by channel, given those of all other channels.

    In coordinates in which the input's channels are independent, the rows of a channel are

        g_o = V_o A + errors of variance s_o,    A ~ N(μ, S) in each column,

    with one column for each input channel, V_o holding the sizes d(o, k) at the positions. Given
    the other channels' positions, A ~ N(m, Σ) in each column. So those of channel o have the exact
    likelihood N(g_o; V_o m, V_o Σ V_oᵀ + s_o), times that of the outputs: u is the known value at
    the largest entry and less elsewhere. A search that fixes A first, as expectation-maximisation
    does, is stuck where this one goes on.

    A channel with a wrong position misleads the others, so each has its own variance s_o, the most
    likely one when A is predicted without it.

    Args:
        equations: Of the stage, in float64.
        prior: Of its inputs.
        generator: For all draws.
    """

    def __init__(self, equations: Equations, prior: Kronecker, generator: torch.Generator) -> None:
        self.equations, self.generator = equations, generator
        self.white = _White(equations, prior)
        self.unit = float(units(equations, prior.deviation)[0])
        self.places = _places(equations)

    def solve(self, shares: Tensor, sweeps: int, watch: Watch) -> tuple[Tensor, float]:
        """The inputs and their worst residual (`solve_inputs`), after as few sweeps as it takes."""
        inputs, worst = solve_inputs(self.equations, shares)
        if not worst > EXACT:
            return inputs, worst
        for sweep, positions in enumerate(self.sweeps(shares, sweeps, watch), 1):
            if sweep % _EVERY == 0 or sweep == sweeps:
                inputs, worst = solve_inputs(self.equations, positions)
                if worst <= EXACT:
                    break
        return inputs, worst

    def sweeps(self, shares: Tensor, count: int, watch: Watch) -> Iterator[Tensor]:
        """The positions after each of some sweeps, from the most likely ones in `shares`."""
        positions = shares.argmax(-1)
        errors = self.white.gradient.new_full((len(positions),), (_NOISE[0] * self.unit) ** 2)
        for sweep in range(count):
            share = sweep / max(1, count - 1)
            least = (_NOISE[0] * (_NOISE[1] / _NOISE[0]) ** share * self.unit) ** 2
            self._sweep(positions, errors, least, watch)
            if watch.is_over():
                return
            yield one_hot(positions, shares.shape[-1]).to(shares)

    def _sweep(self, positions: Tensor, errors: Tensor, least: float, watch: Watch) -> None:
        """All channels in a random order; positions and errors change in place."""
        white, rows = self.white, self._rows(positions)
        weighted = rows / errors[:, None, None]
        precision = white.precision + torch.einsum("osp,osq->pq", weighted, rows)
        pulled = white.pulled + torch.einsum("osp,osc->pc", weighted, white.gradient)
        for channel in self._shuffled(len(rows)):
            if watch.is_over():
                return
            mine, gradient = rows[channel], white.gradient[channel]
            precision = precision - mine.T @ mine / errors[channel]
            pulled = pulled - mine.T @ gradient / errors[channel]
            rest = Inputs.given(self.places, precision, pulled)
            errors[channel] = self._draw(channel, positions, mine, rest, errors[channel], least)
            rows[channel] = mine = self._rows(positions, channel)
            precision = precision + mine.T @ mine / errors[channel]
            pulled = pulled + mine.T @ gradient / errors[channel]

    def _draw(
        self,
        channel: int,
        positions: Tensor,
        rows: Tensor,
        rest: Inputs,
        error: Tensor,
        least: float,
    ) -> Tensor:
        """New positions of a channel, one cell after the other; its new error."""
        at_values = self._of_values(channel, rest)
        fit = Fit.of(rows, self.white.gradient[channel], rest, error)
        for cell in self._shuffled(len(self.places)):
            size = self.equations.weights[channel, cell]
            fit = fit.moved(rest, cell, int(positions[channel, cell]), -size)
            likely = torch.softmax(fit.scores(rest, cell, size) + at_values[cell], 0)
            position = int(torch.multinomial(likely, 1, generator=self.generator))
            fit = fit.moved(rest, cell, position, size)
            positions[channel, cell] = position
        spread = fit.covariance.diagonal().mean() - error
        error = fit.residual.square().mean() - spread
        return error.clamp(least, 4 * self.unit**2)

    def _of_values(self, channel: int, rest: Inputs) -> Tensor:
        """The log-likelihood of the known values for each position: (cells, positions)."""
        equations, kernel = self.equations, self.white.kernel[channel]
        u = (rest.patches * kernel).sum((-1, -2)) + equations.stage.shift[channel]
        deviation = (rest.spreads * (kernel @ kernel.T)).sum((-1, -2)).sqrt().clamp(min=1e-12)
        gaps = (equations.values[channel, :, None] - u) / deviation
        scores: Tensor = -0.5 * gaps.square() - deviation.log() - torch.special.log_ndtr(gaps)
        return scores * equations.seen[channel, :, None]

    def _rows(self, positions: Tensor, channel: int | None = None) -> Tensor:
        """V: (channels, places of the window, places), or of one channel."""
        chosen = slice(None) if channel is None else slice(channel, channel + 1)
        positions, sizes = positions[chosen], self.equations.weights[chosen]
        at = self.places[torch.arange(len(self.places)), positions].transpose(1, 2)
        rows = sizes.new_zeros(*at.shape[:2], len(self.white.precision) + 1)
        rows.scatter_add_(2, at, sizes[:, None].expand(at.shape))
        return rows[..., :-1] if channel is None else rows[0, :, :-1]

    def _shuffled(self, count: int) -> list[int]:
        order: list[int] = torch.randperm(count, generator=self.generator).tolist()
        return order


class _White:
    """The equations in coordinates in which the channels of the inputs are independent."""

    def __init__(self, equations: Equations, prior: Kronecker) -> None:
        scale = prior.channels.diagonal().mean()
        channels = prior.channels / scale
        channels = channels + 1e-2 * torch.eye(len(channels)).to(channels)
        values, vectors = torch.linalg.eigh(channels)
        root, inverse = (vectors * values**power @ vectors.T for power in (0.5, -0.5))
        shape = (len(equations.gradient), len(channels), -1)
        self.gradient = equations.gradient.view(shape).transpose(1, 2) @ inverse
        self.kernel = equations.stage.kernel.reshape(shape).transpose(1, 2) @ root
        alone = torch.linalg.inv(prior.places * scale)
        self.precision = torch.block_diag(*[alone] * equations.count)
        mean = prior.mean.flatten(1).T.repeat(equations.count, 1)
        self.pulled = self.precision @ mean @ inverse


def _places(equations: Equations) -> Tensor:
    """Which place is where in the patch: (cells, positions, places of the window)."""
    like, shape = equations.gradient, (equations.count, 1, *equations.size)
    numbers = torch.arange(1, equations.unknowns + 1, device=like.device).to(like).view(shape)
    places = equations.patches(numbers).T.round().long() - 1
    return torch.where(places < 0, equations.unknowns, places)[equations.cells]
