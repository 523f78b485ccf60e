"""The gradients of single examples as sparse vectors in the span of a layer's gradient."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._random import normal_like
from gradveil._tensors import Tensors

from ._model_layers import Call, noise_beside


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
    """Shape (rank, inputs + 1)."""
    outputs: Tensor
    """[W, b] basisᵀ, shape (units, rank): times p it is the outputs for [x, 1] = p basis."""
    noise: float
    """The standard deviation of the entries' errors, by what exceeds the rank."""
    units: Tensor
    """Which units of the layer are in `rows`: a mask."""

    @property
    def rank(self) -> int:
        """How many different inputs the message shows."""
        return self.rows.shape[1]

    def zeros(self, directions: Tensor) -> Tensor:
        """Where rows · q is 0 up to six standard deviations of the noise: (directions, units)."""
        lengths = directions.norm(dim=1, keepdim=True)
        zeros: Tensor = (directions @ self.rows.T).abs() <= 6 * self.noise * lengths
        return zeros


def factors_of(sent: Tensors, call: Call, batch_size: int) -> Factors | None:
    """The factors; `None` where the message does not show a rank of at most the batch size."""
    gradient = torch.cat([sent[call.weight], sent[call.bias][:, None]], dim=1).double()
    layer = torch.cat([call.layer.weight, call.layer.bias[:, None]], dim=1).detach().double()
    left, sizes, right = torch.linalg.svd(gradient, full_matrices=False)
    precision = torch.finfo(sent[call.weight].dtype).eps * float(sizes[0])
    # rounding errors of sums over examples and units are up to 8 units in the last place
    rank = _rank(sizes, gradient.shape, batch_size, 8 * precision)
    if rank is None:
        return None
    rows, basis = left[:, :rank] * sizes[:rank], right[:rank]
    # larger entries have larger rounding errors, which the mean over all entries does not show;
    # in double precision those of the search itself count
    noise = max(
        noise_beside(sizes, gradient.shape, rank), 0.02 * precision, 1e-14 * float(sizes[0])
    )
    reached = rows.norm(dim=1) > 10 * noise * rank**0.5
    return Factors(rows[reached], basis, (layer @ basis.T)[reached], noise, reached)


def _rank(sizes: Tensor, shape: torch.Size, most: int, rounding: float) -> int | None:
    """The largest rank up to `most` whose last singular value stands clear of what is left.

    Noise of standard deviation σ on an m × n matrix has singular values up to σ (√m + √n). Fewer
    different inputs than examples are the exception, and need more evidence.
    """
    if len(sizes) <= most or float(sizes[0]) == 0:
        return None
    for rank in range(most, 0, -1):
        edge = noise_beside(sizes, shape, rank) * (shape[0] ** 0.5 + shape[1] ** 0.5)
        last, following = sizes[rank - 1 : rank + 1].tolist()
        if last > max((1.3 if rank == most else 4.0) * edge, rounding):
            return rank if following < max(2 * edge, rounding, 0.01 * last) else None
    return None


def balance(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of length 1 with covariance I / rank, and the transform T: rows T, scaled. Tyler's.

    Neither the zeros of rows · q nor their number depend on it, but the way to them does: without
    it, a search sees the few directions and the few units in which gradients are large.

    Reference: Tyler, "A Distribution-Free M-Estimator of Multivariate Scatter", Annals of
    Statistics 1987.
    """
    identity = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    transform, now = identity, rows / rows.norm(dim=1, keepdim=True)
    for _ in range(30):
        covariance = now.T @ now / len(now) + 1e-12 * identity
        step = torch.linalg.inv(torch.linalg.cholesky(covariance)).T
        transform = transform @ step
        transform = transform / transform.norm()
        now = rows @ transform
        now = now / now.norm(dim=1, keepdim=True)
    return now, transform


def search(rows: Tensor, outputs: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Directions q in which rows · q has many zeros; most of them are right, some are not.

    Reweighted least squares: q ← argmin Σ_i w_i (rows_i · q)², w_i = c_i / ((rows_i · q)² + ε²),
    with ε falling. The examples' own gradients are zero exactly where their outputs are negative,
    and outputs are linear in few variables: they lie in the column space of `outputs`. So the
    pattern of zeros, projected on that space, says which zeros to trust: c_i = sigmoid(-z_i), z the
    projection. A start is the null direction of the units that a random point of that space leaves
    inactive.

    Rows are balanced, `outputs` is an orthonormal basis of what outputs can be; `count` searches
    run beside each other.
    """
    point = normal_like(rows.new_empty(count, outputs.shape[1]), generator) @ outputs.T
    trust = torch.sigmoid(-3 * point / point.std(dim=1, keepdim=True)) + 0.02
    directions = normal_like(rows.new_empty(count, rows.shape[1]), generator)
    for _ in range(3):
        directions = _solve(_normal(rows, trust), directions)
    for width in _falling(1.0, 0.05, 40, rows):
        weights = 1 / ((directions @ rows.T).square() + width**2)
        pattern = 1 - 2 * width**2 * weights
        trust = torch.sigmoid(-10 * (pattern @ outputs) @ outputs.T) + 0.01
        directions = _solve(_normal(rows, weights * trust), directions)
    return directions


def _falling(first: float, last: float, steps: int, rows: Tensor) -> list[float]:
    """Sizes of an entry that counts as 0, in units of the typical one."""
    unit = rows.shape[1] ** -0.5
    return [unit * first * (last / first) ** (step / (steps - 1)) for step in range(steps)]


def _normal(rows: Tensor, weights: Tensor) -> Tensor:
    """Σ_i w_i rows_i rows_iᵀ for each row of weights."""
    products = (rows[:, :, None] * rows[:, None, :]).flatten(1)
    sums: Tensor = weights @ products
    return sums.reshape(-1, rows.shape[1], rows.shape[1])


def _solve(normal: Tensor, directions: Tensor) -> Tensor:
    """One inverse iteration each, scaled to length 1."""
    factor = torch.linalg.cholesky_ex(normal)[0]
    solved = torch.cholesky_solve(directions[:, :, None], factor)[:, :, 0]
    return torch.nan_to_num(solved / solved.norm(dim=1, keepdim=True))


def _first_of_each(directions: Tensor, angle: float) -> Tensor:
    """Which directions are no earlier one again, up to sign: a mask."""
    same = (directions @ directions.T).abs() > 1 - angle**2 / 2
    return ~same.tril(diagonal=-1).any(dim=1)


def complete(factors: Factors, open_: Tensor) -> tuple[Tensor, Tensor]:
    """Directions of the last examples, shape (candidates, rank), and the units they leave inactive.

    With [x, 1] = p basis, p lies in the span of `open_`. If one is missing that is p itself, up to
    its length, hence also x, its outputs and its inactive units, whose null direction is q. If two
    are missing, p runs on a line on which each unit changes from inactive to active once: there are
    no more patterns than units to try. More are left to the search.

    `open_`: a basis of what is orthogonal to all directions found, shape (rank, missing).
    """
    points = open_.T[:0] if open_.shape[1] > 2 else open_.T
    if open_.shape[1] == 2:  # one in each sector between the angles at which an output is 0
        first, second = (factors.outputs @ open_).unbind(dim=1)
        angles = torch.atan2(-first, second).remainder(torch.pi).sort()[0]
        middles = torch.cat([(angles[1:] + angles[:-1]) / 2, angles[:1] / 2])
        points = torch.stack([middles.cos(), middles.sin()], dim=1) @ open_.T
    points = points * (points @ factors.basis[:, -1:]).sign()
    inactive = points @ factors.outputs.T < 0
    inactive = inactive[inactive.sum(dim=1) >= factors.rank - 1].unique(dim=0)
    least: Tensor = torch.linalg.eigh(_normal(factors.rows, inactive.to(points)))[1][:, :, 0]
    return least, inactive


class Batch(NamedTuple):
    """The different inputs of a batch and the gradients at their outputs."""

    inputs: Tensor
    """Shape (rank, inputs)."""
    deltas: Tensor
    """Shape (rank, units that any of them reaches)."""


def assemble(factors: Factors, zeros: Tensor) -> Batch | None:
    """The batch whose gradients are 0 in these units; `None` where that determines none.

    The direction of each example is the one that fits its zeros best, q = argmin ‖rows_Z q‖; its
    row of `zeros` are the units that it does not reach. With all of them in Q, [X, 1] = Q⁻¹ basis
    up to the length of each row, which the 1 fixes.
    """
    directions = torch.stack([torch.linalg.svd(factors.rows[own])[2][-1] for own in zeros])
    found = torch.linalg.inv_ex(directions.T)[0] @ factors.basis
    scale = found[:, -1:]
    if not bool(torch.isfinite(found).all()) or bool((scale == 0).any()):
        return None
    deltas = directions @ factors.rows.T * scale
    return Batch((found / scale)[:, :-1], deltas)


class Hunt:
    """Finds one direction for each example; directions that were found narrow the next round.

    With [x, 1] = p basis for an example that is still missing, p · q = 0 for all directions q that
    belong to others: outputs that leave these out lie in a smaller space. Every third round
    searches everywhere, in case one that was found is wrong.

    Directions are kept in balanced coordinates, the most reliable first. One whose zeros hang on a
    single unit is not sure: it may be a mixture of two examples, which is zero where both are
    inactive and, by its own choice, in one more unit.
    """

    def __init__(self, factors: Factors) -> None:
        self.factors, (self.rows, self.transform) = factors, balance(factors.rows)
        self.noises = factors.noise / (factors.rows @ self.transform).norm(dim=1)
        noise = float(self.noises.median() * self.transform.norm())
        self.angle = max(1e-3, min(0.03, 5 * noise))  # up to which two directions are one
        self.directions = self.rows[:0]
        self.zeros = torch.empty(0, len(self.rows), dtype=torch.bool, device=self.rows.device)
        self.sure = self.zeros[:, 0]
        self.missing = self._fewest = factors.rank
        self._rounds = self._last_new = 0

    def run(self, generator: torch.Generator) -> Batch | None:
        """One round; a batch, right or not, once there are as many directions as examples."""
        factors, rows, number = self.factors, self.rows, self._rounds
        self._rounds += 1
        if factors.rank == 1:
            return assemble(factors, torch.zeros(1, len(rows), dtype=torch.bool))
        open_ = self._left_open() if number % 3 else torch.eye(factors.rank).to(rows)
        outputs = torch.linalg.qr(factors.outputs @ open_)[0]
        room = max(32, int(1.2e8 / (len(rows) * factors.rank**2)))  # about a second of one core
        count = min((64 if number else 16) * factors.rank, room)
        self.add(search(rows.float(), outputs.float(), count, generator).double())
        self.add_completions(*complete(factors, self._left_open()))
        chosen = self._independent()
        self.missing = factors.rank - len(chosen)
        doubtful = factors.rank - len(self._independent(sure=True))
        if doubtful < self._fewest:
            self._fewest, self._last_new = doubtful, self._rounds
        return None if self.missing else assemble(factors, self.zeros[chosen])

    def add(self, found: Tensor) -> None:
        """Take those of these directions that have more zeros than any direction can have."""
        found = found[torch.isfinite(found).all(dim=1) & (found.norm(dim=1) > 0.5)]
        found = self._sharpen(found[_first_of_each(found, self.angle)])
        zeros = self.factors.zeros(found @ self.transform.T)
        enough = zeros.sum(dim=1) >= self.factors.rank
        found, zeros = found[enough], zeros[enough]
        self._take(found, zeros, self._leverage(zeros) <= 0.99)

    def add_completions(self, found: Tensor, inactive: Tensor) -> None:
        """Take those directions whose inactive units are all zeros; from `complete`."""
        zeros = self.factors.zeros(found)
        right = (zeros | ~inactive).all(dim=1)
        found = found[right] @ torch.linalg.inv(self.transform).T
        self._take(found / found.norm(dim=1, keepdim=True), zeros[right], right[right])

    @property
    def in_rows(self) -> Tensor:
        """The directions in the coordinates of `factors.rows`, of length 1."""
        directions = self.directions @ self.transform.T
        found: Tensor = directions / directions.norm(dim=1, keepdim=True)
        return found

    @property
    def is_hopeless(self) -> bool:
        """Whether two rounds found no sure direction at all, or six no new one."""
        waited = self._rounds - self._last_new
        return waited >= (2 if self._fewest == self.factors.rank else 6)

    def _take(self, found: Tensor, zeros: Tensor, sure: Tensor) -> None:
        found, zeros, sure = (
            torch.cat(pair)
            for pair in ((self.directions, found), (self.zeros, zeros), (self.sure, sure))
        )
        order = (sure.long() * -(10**6) - zeros.sum(dim=1)).argsort(stable=True)
        order = order[_first_of_each(found[order], self.angle)]
        self.directions, self.zeros, self.sure = found[order], zeros[order], sure[order]

    def _independent(self, sure: bool = False) -> Tensor:
        """The places of the most reliable directions that are linearly independent."""
        chosen: list[int] = []
        spanned = self.directions[:0]
        count = int(self.sure.sum()) if sure else len(self.directions)
        for place, direction in enumerate(self.directions[:count]):
            rest = direction - spanned.T @ (spanned @ direction)
            rest = rest - spanned.T @ (spanned @ rest)
            if len(chosen) < self.factors.rank and float(rest.norm()) > self.angle:
                chosen.append(place)
                spanned = torch.cat([spanned, (rest / rest.norm())[None]])
        return torch.tensor(chosen, dtype=torch.long)

    def _sharpen(self, directions: Tensor) -> Tensor:
        """Plain reweighting until zeros are zeros, up to noise."""
        rows = self.rows
        for width in _falling(0.05, 1e-6, 10, rows):
            noise = (directions @ self.transform.T).norm(dim=1, keepdim=True) * self.noises
            weights = 1 / ((directions @ rows.T).square() + noise.square() + width**2)
            directions = torch.linalg.solve(_normal(rows, weights), directions)
            directions = directions / directions.norm(dim=1, keepdim=True)
        return directions

    def _leverage(self, zeros: Tensor) -> Tensor:
        """How much the space of the zero units' rows depends on a single one of them, at most."""
        sizes, vectors = torch.linalg.eigh(_normal(self.rows, zeros.to(self.rows)))
        inverse = vectors[:, :, 1:] / sizes[:, None, 1:].clamp_min(1e-300).sqrt()
        leverages = (self.rows[None] @ inverse).square().sum(dim=2)
        return torch.where(zeros, leverages, 0.0).amax(dim=1)

    def _left_open(self) -> Tensor:
        """A basis of the p that are orthogonal to the directions found; shape (rank, open ones)."""
        chosen = self._independent(sure=True)
        free = (self.factors.rank - len(chosen)) or self.factors.rank
        basis: Tensor = torch.linalg.svd(self.in_rows[chosen], full_matrices=True)[2]
        return basis[-free:].T  # all of it where nothing is missing
