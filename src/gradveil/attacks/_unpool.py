"""Unpooling: the features before each max-pool, from the last to the first, then the images."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv_transpose2d, one_hot, pad, unfold

from gradveil._checks import WrongValue
from gradveil._tensors import conjugate_gradients

from ._attack import FINISHED, INTERRUPTED, Reconstruction
from ._descent import Cost, Descent, Watch
from ._model_layers import Stage, chain_of, features_of, random_examples, random_inputs, through
from ._peel import SOLVED, LocalSearch
from ._priors import TotalVariation
from ._targets import LabelledSearch, Run

STEPS = 40
"""Of expectation-maximisation in the search for features."""
NEAR = 0.1
"""The relative residual at the first pool up to which images count as found."""
SWEEPS = 20
"""At most how many times all positions are sampled, in at most half of the time that is left."""
SURE = 0.05
"""The share of random inputs' misfit of the whole message below which images are certain."""
EXACT = 1e-4
"""The relative residual of the worst channel's equations below which the inputs are exact."""


class Equations:
    """The equations of a stage: the gradient of its kernel, and its outputs.

    Let a be the inputs and δ = ∂L/∂u, which is 0 but at the largest entry of each cell of the pool.
    With p(o, k) the position of that entry in cell k of channel o and d(o, k) the known size of δ,

        ∂L/∂W[o] = Σ_k d(o, k) · patch of a at p(o, k),    u[o, p(o, k)] = known,

    and u is less at all other positions of the cell. All images' cells stand beside each other.
    Given the positions both are linear in a; given a, the positions are plain to see.
    `outputs` are maps, `slopes` are ∂L/∂outputs, `gradient` is ∂L/∂W, `shape` that of the inputs.
    """

    def __init__(
        self, stage: Stage, outputs: Tensor, slopes: Tensor, gradient: Tensor, shape: torch.Size
    ) -> None:
        self.stage, self.count = stage.to(outputs), len(outputs)
        self.size = size = (shape[2], shape[3])
        self.window = (int(gradient.shape[2]), int(gradient.shape[3]))
        self.gradient = gradient.to(outputs).flatten(1)
        rows, columns = stage.padding
        self.map = (
            size[0] + 2 * rows - self.window[0] + 1,
            size[1] + 2 * columns - self.window[1] + 1,
        )
        places = torch.arange(self.count * math.prod(self.map), dtype=torch.float64)
        parts = unfold(places.view(-1, 1, *self.map), stage.pool, stride=stage.pool)
        self.cells = parts.transpose(1, 2).flatten(0, 1).long().to(outputs.device)
        self.places = self._places()
        positive, channels = outputs > 0, outputs.shape[1]
        seen = positive | (stage.slope > 0)
        values = torch.where(positive, outputs, outputs / (stage.slope or 1.0))
        sizes = slopes * torch.where(positive, 1.0, stage.slope) * self.stage.scale.view(-1, 1, 1)
        self.values, self.weights, self.seen = (
            part.transpose(0, 1).reshape(channels, -1) for part in (values, sizes, seen)
        )

    def even(self) -> Tensor:
        """The same probability for each position of a cell: (channels, cells, positions)."""
        shape = (*self.weights.shape, self.cells.shape[1])
        return self.weights.new_full(shape, 1 / shape[-1])

    def patches(self, inputs: Tensor) -> Tensor:
        """One column for each position of all images."""
        columns = unfold(inputs, self.window, padding=self.stage.padding)
        return columns.transpose(0, 1).flatten(1)

    def _places(self) -> Tensor:
        """Which entry of the inputs is where in the patch: (cells, positions, window's entries).

        Images' entries stand beside each other; one number more stands for padding.
        """
        shape = (self.count, 1, *self.size)
        count = math.prod(shape)
        numbers = torch.arange(1, count + 1, device=self.gradient.device).to(self.gradient)
        places = self.patches(numbers.view(shape)).T.round().long() - 1
        return torch.where(places < 0, count, places)[self.cells]

    def rows(self, positions: Tensor, channels: slice = slice(None)) -> Tensor:
        """V, for which V a is the gradient with these positions: (channels, window's, entries)."""
        positions, sizes = positions[channels], self.weights[channels]
        at = self.places[torch.arange(len(self.places)), positions].transpose(1, 2)
        rows = sizes.new_zeros(*at.shape[:2], self.count * math.prod(self.size) + 1)
        rows.scatter_add_(2, at, sizes[:, None].expand(at.shape))
        return rows[..., :-1]

    def gaps(self, inputs: Tensor) -> Tensor:
        """The known largest value of u minus u at each position of its cell."""
        u = self.stage.linear(inputs).transpose(0, 1).flatten(1) + self.stage.shift[:, None]
        return self.values[:, :, None] - u[:, self.cells]

    def delta(self, shares: Tensor) -> Tensor:
        """The expected δ at all positions, those of the cells having these probabilities."""
        of_cells = self.weights[:, :, None] * shares
        everywhere = of_cells.new_zeros(len(of_cells), self.count * math.prod(self.map))
        everywhere[:, self.cells.flatten()] = of_cells.flatten(1)
        return everywhere

    def pulled_back(self, shares: Tensor) -> Tensor:
        """∂L/∂a, as maps."""
        delta = self.delta(shares) / self.stage.scale[:, None]
        maps = delta.unflatten(1, (self.count, *self.map)).transpose(0, 1)
        return conv_transpose2d(maps, self.stage.kernel, padding=self.stage.padding)

    def positions(self, inputs: Tensor) -> Tensor:
        """Where u is largest, as probabilities 0 and 1."""
        gaps = self.gaps(inputs)
        return one_hot(gaps.argmin(-1), gaps.shape[-1]).to(gaps)

    def misfit(self, inputs: Tensor) -> float:
        """The relative residual of the gradient."""
        fitted = self.delta(self.positions(inputs)) @ self.patches(inputs).T
        return float((fitted - self.gradient).norm() / self.gradient.norm())

    def units(self, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """What an error of one standard deviation in all inputs does to the gradient and to u."""
        noise = self.weights.square().sum(1).mean().sqrt() * deviation
        return noise, self.stage.kernel.flatten(1).norm(dim=1).mean() * deviation

    def expected(self, patches: Tensor, gaps: Tensor, shares: Tensor, noise: Tensor) -> Tensor:
        """The misfit of the gradient and of the known u, expected over the positions.

        Of the patches of some inputs, and of their gaps in units of u's error.
        """
        residual, of_cells = self.gradient - self.delta(shares) @ patches.T, patches.T[self.cells]
        sizes = self.weights[:, :, None]
        mean, squares = sizes * shares, (sizes.square() * shares).sum(0)
        covariance = torch.diag_embed(squares) - torch.einsum("oki,okj->kij", mean, mean)  # of δ
        spread = (covariance * (of_cells @ of_cells.transpose(1, 2))).sum()
        values = (shares * self.seen[:, :, None] * gaps.square()).sum()
        return 0.5 * ((residual.square().sum() + spread) / noise**2 + values)

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


def cooled(share: float, first: float = 300.0) -> tuple[float, float]:
    """The errors allowed in the gradient and in the known u when this share of the steps is done.

    In units of what is expected (`Equations.units`). At first the positions are open and the answer
    is near the mean of all maps; as the errors fall, positions settle one after the other
    (deterministic annealing).

    >>> cooled(0.0)
    (300.0, 1.0)
    """
    return first * math.exp(share * math.log(0.1 / first)), math.exp(share * math.log(0.03))


def search_inputs(equations: Equations, prior: Kronecker, steps: int, watch: Watch) -> Tensor:
    """The positions' probabilities at the end of expectation-maximisation with falling errors."""
    noise, blur = equations.units(prior.deviation)
    inputs = prior.mean.expand(equations.count, *prior.mean.shape)
    shares = equations.even()
    for step in range(steps):
        if watch.is_over():
            break
        factors = cooled(step / max(1, steps - 1))
        errors = (noise * factors[0], blur * factors[1])
        if step > 0:
            shares = equations.estimate(inputs, shares, *errors)
        inputs = _most_likely(equations, prior, shares, *errors, inputs)
    return shares


def _most_likely(
    equations: Equations, prior: Kronecker, shares: Tensor, noise: Tensor, blur: Tensor, at: Tensor
) -> Tensor:
    """The inputs that minimise the expected misfit plus the prior's energy, by a few products."""
    maps, precision = at.detach().clone().requires_grad_(), prior.inverse()
    patches, gaps = equations.patches(maps), equations.gaps(maps) / blur
    misfit = equations.expected(patches, gaps, shares, noise)
    (slope,) = torch.autograd.grad(misfit, maps, create_graph=True)

    def multiply(rows: Tensor) -> Tensor:  # the slope is linear in the inputs
        rows = rows.view_as(maps)
        (product,) = torch.autograd.grad(slope, maps, rows, retain_graph=True)
        return (product + precision.multiply(rows)).view(1, -1)

    def precondition(rows: Tensor) -> Tensor:
        return prior.multiply(rows.view_as(maps)).view(rows.shape)

    right = -slope.detach() - precision.multiply(at - prior.mean)
    step, _ = conjugate_gradients(multiply, right.reshape(1, -1), precondition, 1e-3, max_steps=15)
    return at + step.view_as(at)


def solve_inputs(equations: Equations, shares: Tensor, rounds: int = 6) -> tuple[Tensor, float]:
    """The inputs by least squares that sets wrong channels aside, and the worst residual.

    A channel whose positions are all right has a residual of 0, one with a wrong position a large
    one. Reweighted least squares (channels weighted by 1/residual) therefore follows the right
    ones, and its solution shows the positions in the others.
    """
    gradient = equations.gradient.unflatten(1, (-1, math.prod(equations.window))).transpose(1, 2)
    sizes = gradient.flatten(1).norm(dim=1)
    sizes = sizes.clamp(min=1e-3 * float(sizes.mean()))
    positions, inputs, worst = shares, shares, math.inf
    for _ in range(rounds):
        matrix = equations.rows(positions.argmax(-1))
        solution, residuals = _reweighted(matrix, gradient, sizes)
        maps = solution.T.unflatten(1, (equations.count, *equations.size)).transpose(0, 1)
        inputs, worst = maps.contiguous(), float((residuals / sizes).max())
        if worst < EXACT / 10 or equations.cells.shape[1] == 1:
            break
        positions = equations.positions(inputs)
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


def _ridged(matrix: Tensor, share: float) -> Tensor:
    size = share * matrix.diagonal().mean()
    return matrix + size * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


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

    def moved(
        self, inputs: Inputs, cell: int, size: Tensor, position: int | slice = slice(None)
    ) -> "Fit":
        """With `size` more at one position of a cell, or in turn at each of them."""
        places = inputs.places[cell, position]
        mixed = self.across[:, places].movedim(0, -2)
        spread = size.square() * inputs.spreads[cell, position]
        return Fit(
            self.residual - size * inputs.patches[cell, position],
            self.across + size * inputs.covariance[places],
            self.covariance + size * (mixed + mixed.mT) + spread,
        )

    def scores(self) -> Tensor:
        """The log-likelihood of g for each position, up to a constant."""
        root = torch.linalg.cholesky(self.covariance)
        white = torch.linalg.solve_triangular(root, self.residual, upper=False)
        sizes = root.diagonal(dim1=1, dim2=2).log().sum(1)
        total: Tensor = -0.5 * white.square().sum((1, 2)) - white.shape[2] * sizes
        return total


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
    All of it is in float64.
    """

    def __init__(self, equations: Equations, prior: Kronecker, generator: torch.Generator) -> None:
        self.equations, self.generator = equations, generator
        self.unit = float(equations.units(prior.deviation)[0])
        # coordinates in which the channels of the inputs are independent
        scale = prior.channels.diagonal().mean()
        channels = _ridged(prior.channels / scale, 1e-2)
        values, vectors = torch.linalg.eigh(channels)
        root, inverse = (vectors * values**power @ vectors.T for power in (0.5, -0.5))
        shape = (len(equations.gradient), len(channels), -1)
        self.gradient = equations.gradient.view(shape).transpose(1, 2) @ inverse
        self.kernel = equations.stage.kernel.reshape(shape).transpose(1, 2) @ root
        alone = torch.linalg.inv(prior.places * scale)
        self.precision = torch.block_diag(*[alone] * equations.count)
        mean = prior.mean.flatten(1).T.repeat(equations.count, 1)
        self.pulled = self.precision @ mean @ inverse

    def solve(self, shares: Tensor, sweeps: int, watch: Watch) -> tuple[Tensor, float]:
        """The inputs and their worst residual (`solve_inputs`), after as few sweeps as it takes."""
        inputs, worst = solve_inputs(self.equations, shares)
        sweeps = sweeps if worst > EXACT else 0
        for sweep, positions in enumerate(self.sweeps(shares, sweeps, watch), 1):
            if sweep % 2 == 0 or sweep == sweeps:
                inputs, worst = solve_inputs(self.equations, positions)
                if worst <= EXACT:
                    break
        return inputs, worst

    def sweeps(self, shares: Tensor, count: int, watch: Watch) -> Iterator[Tensor]:
        """The positions after each of some sweeps, from the most likely ones in `shares`.

        The least error of a channel falls from 0.03 to 0.003 of what is expected.
        """
        positions = shares.argmax(-1)
        errors = self.gradient.new_full((len(positions),), (0.03 * self.unit) ** 2)
        for sweep in range(count):
            least = 0.03 * 0.1 ** (sweep / max(1, count - 1)) * self.unit
            self._sweep(positions, errors, least**2, watch)
            if watch.is_over():
                return
            yield one_hot(positions, shares.shape[-1]).to(shares)

    def _sweep(self, positions: Tensor, errors: Tensor, least: float, watch: Watch) -> None:
        """All channels in a random order; positions and errors change in place."""
        rows = self.equations.rows(positions)
        weighted = rows / errors[:, None, None]
        precision = self.precision + torch.einsum("osp,osq->pq", weighted, rows)
        pulled = self.pulled + torch.einsum("osp,osc->pc", weighted, self.gradient)
        for channel in torch.randperm(len(rows), generator=self.generator).tolist():
            if watch.is_over():
                return
            mine, gradient = rows[channel], self.gradient[channel]
            precision = precision - mine.T @ mine / errors[channel]
            pulled = pulled - mine.T @ gradient / errors[channel]
            rest = Inputs.given(self.equations.places, precision, pulled)
            fit = self._draw(channel, positions, mine, rest, errors[channel])
            spread = fit.covariance.diagonal().mean() - errors[channel]
            error = fit.residual.square().mean() - spread
            errors[channel] = error.clamp(least, 4 * self.unit**2)
            rows[channel] = mine = self.equations.rows(positions, slice(channel, channel + 1))[0]
            precision = precision + mine.T @ mine / errors[channel]
            pulled = pulled + mine.T @ gradient / errors[channel]

    def _draw(
        self, channel: int, positions: Tensor, rows: Tensor, rest: Inputs, error: Tensor
    ) -> Fit:
        """New positions of a channel, one cell after the other; how they fit."""
        at_values = self._of_values(channel, rest)
        fit = Fit.of(rows, self.gradient[channel], rest, error)
        count = len(self.equations.cells)
        for cell in torch.randperm(count, generator=self.generator).tolist():
            size = self.equations.weights[channel, cell]
            fit = fit.moved(rest, cell, -size, int(positions[channel, cell]))
            tried = fit.moved(rest, cell, size)
            likely = torch.softmax(tried.scores() + at_values[cell], 0)
            position = int(torch.multinomial(likely, 1, generator=self.generator))
            fit = Fit(*(part[position] for part in tried))
            positions[channel, cell] = position
        return fit

    def _of_values(self, channel: int, rest: Inputs) -> Tensor:
        """The log-likelihood of the known values for each position: (cells, positions)."""
        equations, kernel = self.equations, self.kernel[channel]
        u = (rest.patches * kernel).sum((-1, -2)) + equations.stage.shift[channel]
        deviation = (rest.spreads * (kernel @ kernel.T)).sum((-1, -2)).sqrt().clamp(min=1e-12)
        gaps = (equations.values[channel, :, None] - u) / deviation
        scores: Tensor = -0.5 * gaps.square() - deviation.log() - torch.special.log_ndtr(gaps)
        return scores * equations.seen[channel, :, None]


def image_cost(
    lower: Sequence[Stage], equations: Equations, deviation: Tensor, energy: TotalVariation
) -> Cost:
    """The expected misfit of a stage's equations for images x, a = lower stages of x.

    The positions' probabilities are estimated again at every step (`Equations.estimate`), the
    allowed errors fall on the way, and total variation keeps what is not determined smooth.
    """
    unit, latest = equations.units(deviation), list[Tensor]()

    def cost(inputs: Tensor, progress: float) -> Tensor:
        factors = cooled(progress, 30.0)
        noise, blur = unit[0] * factors[0], unit[1] * factors[1]
        features = through(lower, inputs)
        with torch.no_grad():
            if not latest:
                latest.append(torch.softmax(-equations.gaps(features) / unit[1], -1))
            latest[0] = shares = equations.estimate(features, latest[0], noise, blur)
        # the expected -log-likelihood of the gradient and of the outputs
        patches, gaps = equations.patches(features), equations.gaps(features) / blur
        less = (1 - shares) * torch.special.log_ndtr(gaps) * equations.seen[:, :, None]
        total: Tensor = equations.expected(patches, gaps, shares, noise) - less.sum()
        return total + energy(inputs)

    return cost


@dataclass(frozen=True)
class Unpool(LabelledSearch):
    """Exact features stage by stage from the end of a convolutional model, then the images.

    1. The head's outputs, their gradients and the features that it reads, as in `Peel`.
    2. For each stage (convolution, BatchNorm in eval mode, activation, max-pool) from the last on:
       its outputs and their gradients are known; unknown are the position of the largest entry in
       each cell of the pool, and the inputs. Expectation-maximisation with falling errors finds
       most positions, Gibbs sampling more of them where these are not enough (`Sampler`),
       reweighted least squares the rest (`Equations`). Residuals of 0 prove it. The inputs' own
       gradient follows, and the next stage is reached.
    3. Where a stage has more unknowns than equations, and no pool is below it: images whose
       features fit its equations, the positions being open, with some total variation.

    It needs a gradient without noise and with all entries, a chain of such stages, and kernels with
    more entries for each input channel than the batch has places; elsewhere `solve` gives `None`.

    Args:
        steps: Of step 3, first-order.

    >>> Unpool(steps=100).steps
    100
    """

    steps: int = 200

    def search(self, run: Run) -> Reconstruction:
        """The batch; where the message does not determine the stages, an error."""
        found = self.solve(run)
        if found is None:
            raise WrongValue(
                "observation",
                "be of a gradient without noise and with all entries, of a chain of convolutions,"
                " activations and max-pools with a linear head that is narrower than the inputs",
                "a message whose stages are not determined",
                "Use `InvertingGradients`.",
            )
        return found

    def solve(self, run: Run) -> Reconstruction | None:
        """The batch; `None` where the stages are not determined, or their solution not found."""
        try:
            return self._solve(run)
        except KeyboardInterrupt:
            return run.blank(INTERRUPTED)

    def _solve(self, run: Run) -> Reconstruction | None:
        seen = run.observation
        search = LocalSearch.of(run) if seen.local is None else None
        if search is None or search.local.head.noise > 0:
            return None
        stages, open_ = _chain(search, run)
        if open_ == len(stages) or any(stage.pool > 1 for stage in stages[: max(0, open_ - 1)]):
            return None
        places, cost = search.solve(None)
        if not cost < SOLVED or run.watch.is_over():
            return None
        head, outputs = search.local.head, search.local.outputs(places)
        samples = random_examples(seen, 128, run.generator)  # what features are like
        shape = (-1, *through(stages, samples[:1]).shape[1:])
        features = head.features(outputs, run.labels)[0].view(shape)
        delta, weight = head.gradients(outputs, run.labels)[1], head.call.layer.weight.detach()
        slopes = (delta @ weight).view(shape)
        for level in reversed(range(open_, len(stages))):
            stage, pooled = stages[level], stages[level].pool > 1
            below = through(stages[:level], samples if pooled else samples[:1])
            equations = Equations(stage, features, slopes, seen.sent[stage.weight], below.shape)
            if pooled:
                prior = Kronecker.fit(below.double())
                shares = search_inputs(equations, prior, STEPS, run.watch)
                sampler = Sampler(equations, prior, run.generator)
                features, worst = sampler.solve(shares, SWEEPS, run.watch.part(0.5))
            else:
                features, worst = solve_inputs(equations, equations.even())
            if worst > EXACT or run.watch.is_over():
                return None
            slopes = equations.pulled_back(equations.positions(features))
        inputs, residual, status = features.to(samples), 0.0, FINISHED
        if open_ > 0:
            slopes = slopes.to(samples)
            inputs, residual, status = self._images(run, stages[:open_], inputs, slopes, samples)
        own, fits = run.misfit(inputs), residual < NEAR
        certain = fits and own < SURE * run.random_misfit()
        result = Reconstruction(inputs, run.labels, own, status, certain)
        return result if fits or status == INTERRUPTED else None

    def _images(
        self, run: Run, stages: list[Stage], outputs: Tensor, slopes: Tensor, samples: Tensor
    ) -> tuple[Tensor, float, str]:
        """The images from the outputs of the last of the stages, and the relative residual."""
        (*lower, stage), gradient = stages, run.observation.sent[stages[-1].weight]
        features = through(lower, samples[:16])
        equations = Equations(stage, outputs, slopes, gradient, features.shape)
        energy = TotalVariation(1 / float(samples.std()))  # a nat for each standard deviation
        cost = image_cost(lower, equations, features.var(0).mean().sqrt(), energy)
        low, high, width = run.observation.low, run.observation.high, 4.0
        start = samples.new_zeros(1, len(outputs), *samples.shape[1:])
        if low is not None and high is not None:
            start, width = start + ((low + high) / 2).to(start), float((high - low).mean())
        # the rate is that of a quarter of the range, about one standard deviation
        left = run.watch.left()
        descent = Descent(self.steps, 0.1 * width, "adam", "cosine", time_budget=left, settled=1.0)
        minimum = run.minimise(cost, start, descent)
        images = minimum.inputs[0]
        with torch.no_grad():
            residual = equations.misfit(through(lower, images))
        return images, residual, minimum.status


def _chain(search: LocalSearch, run: Run) -> tuple[list[Stage], int]:
    """The model's stages, and how many of the first ones equations do not reach.

    A kernel's gradient fixes the inputs once positions are known if there are 1.5 equations for
    each unknown: each channel of the inputs, of as many maps as images, is a problem of its own.
    """
    seen, probe = run.observation, random_inputs(run.observation, 2, run.generator)
    with torch.no_grad():
        features = features_of(search.local.head.call.name, seen)(probe)
        stages = chain_of(seen, features, probe) or []
    wide = features.shape[1] >= probe[0].numel()
    if wide or any(stage.weight not in seen.sent for stage in stages):
        return [], 0
    for level in reversed(range(len(stages))):
        below = through(stages[:level], probe)[0, 0].numel()
        if seen.sent[stages[level].weight][:, 0].numel() < 1.5 * seen.batch_size * below:
            return stages, level + 1
    return stages, 0
