"""The gradients of single examples as sparse vectors in the span of a layer's gradient."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._random import normal_like
from gradveil._typing import Tensors

from ._model_layers import Call

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


class Balanced(NamedTuple):
    """Scaled rows in other coordinates: scales[i] · rows[i] · transform."""

    rows: Tensor
    transform: Tensor


def balance(rows: Tensor) -> Balanced:
    """Rows of length 1 with covariance I / rank: Tyler's fixed point.

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
    return Balanced(now, transform)


_STEPS = 40
_WIDTHS = (1.0, 0.05)
"""The size of an entry that counts as 0, relative to the typical one: at the start, at the end."""
_STEEPNESS, _FLOOR = 10.0, 0.01
"""How strongly the layer's outputs guide the weights."""


def search(rows: Tensor, outputs: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Directions q in which rows · q has many zeros; most of them are right, some are not.

    Reweighted least squares: q ← argmin Σ_i w_i (rows_i · q)², w_i = c_i / ((rows_i · q)² + ε²),
    with ε falling. The examples' own gradients are zero exactly where their outputs are negative,
    and outputs are linear in few variables: they lie in the column space of `outputs`. So the
    pattern of zeros, projected on that space, says which zeros to trust: c_i = sigmoid(-z_i), z the
    projection. A start is the null direction of the units that a random point of that space leaves
    inactive.

    Args:
        rows: Balanced, shape (units, rank).
        outputs: An orthonormal basis of what the outputs can be, shape (units, up to rank).
        count: How many searches run beside each other.
        generator: Of the starts.
    """
    blank = rows.new_empty(count, outputs.shape[1])
    point = normal_like(blank, generator) @ outputs.T
    trust = torch.sigmoid(-3 * point / point.std(dim=1, keepdim=True)) + 0.02
    directions = normal_like(rows.new_empty(count, rows.shape[1]), generator)
    products = (rows[:, :, None] * rows[:, None, :]).flatten(1)
    for _ in range(3):
        directions = _solve(products, trust, directions)
    unit = rows.shape[1] ** -0.5
    for step in range(_STEPS):
        first, last = _WIDTHS
        width = unit * first * (last / first) ** (step / (_STEPS - 1))
        weights = 1 / ((directions @ rows.T).square() + width**2)
        pattern = 1 - 2 * width**2 * weights
        expected = (pattern @ outputs) @ outputs.T
        trust = torch.sigmoid(-_STEEPNESS * expected) + _FLOOR
        directions = _solve(products, weights * trust, directions)
    return directions


def _solve(products: Tensor, weights: Tensor, directions: Tensor) -> Tensor:
    """One inverse iteration each with Σ_i w_i rows_i rows_iᵀ, scaled to length 1."""
    size = directions.shape[1]
    normal = (weights @ products).reshape(-1, size, size)
    factor = torch.linalg.cholesky_ex(normal)[0]
    solved = torch.cholesky_solve(directions[:, :, None], factor)[:, :, 0]
    return torch.nan_to_num(solved / solved.norm(dim=1, keepdim=True))


_ANGLE = 1e-3
"""The angle up to which two directions are one, without noise ..."""
_WIDER, _WIDEST = 5.0, 0.03
"""... and with it, in units of the rows' relative noise, and at most."""
_SURE, _NEARLY, _MANY = 0.99, 0.999, 3
"""The leverage of a zero above which a direction hangs on this one unit: then it may be a mixture
of two examples, which is zero where both are inactive and, by its own choice, in one more unit. The
second limit is for directions with so many zeros more than any direction can have."""
_SHARPENINGS, _FIRST_WIDTH, _LAST_WIDTH = 10, 0.05, 1e-6
_ZERO = 6.0
"""Up to how many standard deviations of the noise an entry counts as 0."""


@dataclass
class Candidates:
    """Directions in balanced coordinates, with the units that each leaves at 0."""

    factors: Factors
    balanced: Balanced
    directions: Tensor = field(init=False)
    """Of length 1, shape (candidates, rank)."""
    zeros: Tensor = field(init=False)
    """Shape (candidates, units)."""
    sure: Tensor = field(init=False)
    """Whether it is one example's beyond doubt, shape (candidates,)."""

    def __post_init__(self) -> None:
        rows = self.factors.rows
        self.directions = rows.new_empty(0, self.factors.rank)
        lengths = (rows @ self.balanced.transform).norm(dim=1)
        self.noises = self.factors.noise / lengths  # of the balanced rows, in units of transform
        worst = float(self.noises.median() * self.balanced.transform.norm())
        self.angle = max(_ANGLE, min(_WIDEST, _WIDER * worst))
        self.zeros = torch.empty(0, len(rows), dtype=torch.bool, device=rows.device)
        self.sure = torch.empty(0, dtype=torch.bool, device=rows.device)

    def add(self, found: Tensor) -> None:
        """Take those of these directions that have more zeros than any direction can have."""
        usable = torch.isfinite(found).all(dim=1) & (found.norm(dim=1) > 0.5)
        found = found[usable]
        found = self._sharpen(found[_first_of_each(found, self.angle)])
        zeros = zeros_of(self.factors, found @ self.balanced.transform.T)
        surplus = zeros.sum(dim=1) - self.factors.rank
        found, zeros, surplus = (each[surplus >= 0] for each in (found, zeros, surplus))
        leverages = self._leverage(zeros)
        sure = (leverages <= _SURE) | ((leverages <= _NEARLY) & (surplus >= _MANY))
        self._take(found, zeros, sure)

    def add_completions(self, found: Tensor, inactive: Tensor) -> None:
        """Take those directions whose inactive units are all zeros; from `complete`."""
        zeros = zeros_of(self.factors, found)
        right = (zeros | ~inactive).all(dim=1)
        found = found[right] @ torch.linalg.inv(self.balanced.transform).T
        self._take(found / found.norm(dim=1, keepdim=True), zeros[right], right[right])

    def _take(self, found: Tensor, zeros: Tensor, sure: Tensor) -> None:
        self.directions = torch.cat([self.directions, found])
        self.zeros = torch.cat([self.zeros, zeros])
        self.sure = torch.cat([self.sure, sure])
        order = (self.sure.long() * -(10**6) - self.zeros.sum(dim=1)).argsort(stable=True)
        self._keep(order)
        self._keep(_first_of_each(self.directions, self.angle))

    @property
    def in_rows(self) -> Tensor:
        """The directions in the coordinates of `factors.rows`, of length 1."""
        directions: Tensor = self.directions @ self.balanced.transform.T
        lengths: Tensor = directions.norm(dim=1, keepdim=True)
        return directions / lengths

    def independent(self, sure: bool = False) -> Tensor:
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

    def drop(self, places: Tensor) -> None:
        """Forget these."""
        keep = torch.ones(len(self.directions), dtype=torch.bool)
        keep[places] = False
        self._keep(keep.nonzero().flatten())

    def _keep(self, places: Tensor) -> None:
        self.directions, self.zeros = self.directions[places], self.zeros[places]
        self.sure = self.sure[places]

    def _sharpen(self, directions: Tensor) -> Tensor:
        """Plain reweighting until zeros are zeros, up to noise."""
        rows, rank = self.balanced.rows, self.factors.rank
        products = (rows[:, :, None] * rows[:, None, :]).flatten(1)
        for step in range(_SHARPENINGS):
            width = (
                rank**-0.5
                * _FIRST_WIDTH
                * (_LAST_WIDTH / _FIRST_WIDTH) ** (step / (_SHARPENINGS - 1))
            )
            lengths = (directions @ self.balanced.transform.T).norm(dim=1, keepdim=True)
            noise = lengths * self.noises
            weights = 1 / ((directions @ rows.T).square() + noise.square() + width**2)
            normal = (weights @ products).reshape(-1, rank, rank)
            directions = torch.linalg.solve(normal, directions)
            directions = directions / directions.norm(dim=1, keepdim=True)
        return directions

    def _leverage(self, zeros: Tensor) -> Tensor:
        """How much the space of the zero units' rows depends on a single one of them, at most."""
        rows, rank = self.balanced.rows, self.factors.rank
        products = (rows[:, :, None] * rows[:, None, :]).flatten(1)
        normal = (zeros.to(rows.dtype) @ products).reshape(-1, rank, rank)
        sizes, vectors = torch.linalg.eigh(normal)
        inverse = vectors[:, :, 1:] / sizes[:, None, 1:].clamp_min(1e-300).sqrt()
        leverages = (rows[None] @ inverse).square().sum(dim=2)
        return torch.where(zeros, leverages, 0.0).amax(dim=1)


def zeros_of(factors: Factors, directions: Tensor) -> Tensor:
    """Where rows · q is 0 up to noise."""
    lengths = directions.norm(dim=1, keepdim=True)
    zeros: Tensor = (directions @ factors.rows.T).abs() <= _ZERO * factors.noise * lengths
    return zeros


def _first_of_each(directions: Tensor, angle: float) -> Tensor:
    """The places of the first of all directions that are the same up to sign."""
    same = (directions @ directions.T).abs() > 1 - angle**2 / 2
    earlier = same.tril(diagonal=-1).any(dim=1)
    return (~earlier).nonzero().flatten()


_MOST, _COMPLETION_WORK = 2000, 2e6
"""Random points to try: at most, and times rank³."""


def complete(factors: Factors, open_: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Directions of the last examples, shape (candidates, rank), and the units they leave inactive.

    With [x, 1] = p basis, p lies in the span of `open_`. If one is missing that is p itself, up to
    its length, hence also x, its outputs and its inactive units, whose null direction is q. If two
    are missing, p runs on a line on which each unit changes from inactive to active once: there are
    no more patterns than units to try. For up to five, random points are tried.

    Args:
        factors: Of the layer's gradient.
        open_: A basis of what is orthogonal to all directions found, shape (rank, missing).
        generator: Of the random points.
    """
    missing, rank = open_.shape[1], factors.rank
    if missing == 1:
        points = open_.T
    elif missing == 2:
        points = _along_the_line(factors, open_)
    else:
        count = min(_MOST, int(_COMPLETION_WORK / rank**3)) if missing <= 5 else 0
        points = normal_like(open_.new_empty(count, missing), generator) @ open_.T
    if factors.has_bias:
        points = points * (points @ factors.basis[:, -1:]).sign()
    else:
        points = torch.cat([points, -points])
    inactive = points @ factors.outputs.T < 0
    inactive = inactive[inactive.sum(dim=1) >= rank - 1].unique(dim=0)
    return _null_directions(factors.rows, inactive), inactive


def _along_the_line(factors: Factors, open_: Tensor) -> Tensor:
    """One point in each sector between the angles at which some unit's output is 0."""
    first, second = (factors.outputs @ open_).unbind(dim=1)
    angles = torch.atan2(-first, second).remainder(torch.pi).sort()[0]
    middles = torch.cat([(angles[1:] + angles[:-1]) / 2, angles[:1] / 2])
    return torch.stack([middles.cos(), middles.sin()], dim=1) @ open_.T


def _null_directions(rows: Tensor, inactive: Tensor) -> Tensor:
    """The least singular vectors of the rows of the inactive units."""
    rank = rows.shape[1]
    products = (rows[:, :, None] * rows[:, None, :]).flatten(1)
    normal = (inactive.to(rows.dtype) @ products).reshape(-1, rank, rank)
    least: Tensor = torch.linalg.eigh(normal)[1][:, :, 0]
    return least


class Batch(NamedTuple):
    """The different inputs of a batch and the gradients at their outputs."""

    inputs: Tensor
    """Shape (rank, inputs); without a bias in the layer, up to a positive factor each."""
    deltas: Tensor
    """Shape (rank, units that any of them reaches), up to the inverse factors."""
    agreement: Tensor
    """For each input the share of units whose gradient is 0 just where their output is below 0."""


def assemble(factors: Factors, zeros: Tensor) -> Batch | None:
    """The batch whose gradients are 0 in these units; `None` where that determines none.

    The direction of each example is the one that fits its zeros best, q = argmin ‖rows_Z q‖. With
    all of them in Q, [X, 1] = Q⁻¹ basis up to the length of each row, which the 1 fixes.

    Args:
        factors: Of the layer's gradient.
        zeros: For each example the units that it does not reach, shape (rank, units).
    """
    directions = torch.stack([torch.linalg.svd(factors.rows[own])[2][-1] for own in zeros])
    dual = torch.linalg.inv_ex(directions.T)[0]
    scale = _scale(factors, dual, zeros)
    if not bool(torch.isfinite(dual).all()) or bool((scale == 0).any()):
        return None
    found = dual @ factors.basis / scale
    inputs = found[:, :-1] if factors.has_bias else found
    deltas = directions @ factors.rows.T * scale
    return Batch(inputs, deltas, agreement(factors, directions, zeros))


def agreement(factors: Factors, directions: Tensor, zeros: Tensor) -> Tensor:
    """The share of units that are 0 just where the input's own output is negative.

    Args:
        factors: Of the layer's gradient.
        directions: Sets of as many directions as the rank, shape (..., rank, rank).
        zeros: Of each of them, shape (..., rank, units).

    Returns:
        Shape (..., rank). A wrong direction spoils this for itself and for those it is mixed of.
    """
    dual = torch.linalg.inv_ex(directions.mT)[0]
    outputs = dual @ factors.outputs.T / _scale(factors, dual, zeros).sign()
    share: Tensor = ((outputs > 0) == ~zeros).to(outputs.dtype).mean(dim=-1)
    return share


def _scale(factors: Factors, dual: Tensor, zeros: Tensor) -> Tensor:
    """What the rows of dual · basis are to be divided by; without a bias only their signs."""
    if factors.has_bias:
        return dual @ factors.basis[:, -1:]
    outputs = dual @ factors.outputs.T
    return (outputs * ~zeros).sum(dim=-1, keepdim=True).sign()


_SWAPS = 2000
"""Exchanges that are tried at once, at most."""


def improve(candidates: Candidates, chosen: Tensor) -> Tensor:
    """Exchange chosen directions for others as long as outputs and zeros then agree better.

    Args:
        candidates: All directions.
        chosen: The places of as many as the rank, linearly independent.
    """
    best = _agreement(candidates, chosen[None])[0]
    for _ in range(len(chosen)):
        swaps = _swaps(candidates, chosen, best)
        if len(swaps) == 0:
            break
        tried = _agreement(candidates, swaps)
        winner = tried.sum(dim=1).argmax()
        if float(tried[winner].sum()) <= float(best.sum()):
            break
        chosen, best = swaps[winner], tried[winner]
    return chosen


def _agreement(candidates: Candidates, sets: Tensor) -> Tensor:
    found = agreement(candidates.factors, candidates.in_rows[sets], candidates.zeros[sets])
    return torch.nan_to_num(found)


def _swaps(candidates: Candidates, chosen: Tensor, own: Tensor) -> Tensor:
    """All sets with one of those that do not agree exchanged, the worst first."""
    others = torch.ones(len(candidates.zeros), dtype=torch.bool)
    others[chosen] = False
    worst = own.argsort()[: int((own < 1).sum())]
    sets = []
    for place in worst.tolist():
        for other in others.nonzero().flatten().tolist():
            changed = chosen.clone()
            changed[place] = other
            sets.append(changed)
    return torch.stack(sets[:_SWAPS]) if sets else chosen[:0]


_WORK = 1.2e8
"""Searches times units times rank² in one round: about a second of one core."""
_FEWEST, _FIRST, _LATER = 32, 16, 64
"""Searches in one round: at least, and at most for each example in the first and in later ones."""
_PATIENCE, _STUCK = 2, 6
"""Rounds without any sure direction, or without a new one, after which there is no hope."""


class Hunt:
    """Finds one direction for each example; directions that were found narrow the next round.

    With [x, 1] = p basis for an example that is still missing, p · q = 0 for all directions q that
    belong to others: outputs that leave these out lie in a smaller space. Every third round
    searches everywhere, in case one that was found is wrong.
    """

    def __init__(self, factors: Factors) -> None:
        self.factors, self.balanced = factors, balance(factors.rows)
        self.candidates = Candidates(factors, self.balanced)
        self.chosen, self.missing = torch.empty(0, dtype=torch.long), factors.rank
        self._fewest, self._rounds, self._last_new = factors.rank, 0, 0

    def run(self, generator: torch.Generator) -> Batch | None:
        """One round; a batch, right or not, once there are as many directions as examples."""
        factors, rows = self.factors, self.balanced.rows
        if factors.rank == 1:
            self._count(0)
            return assemble(factors, torch.zeros(1, len(rows), dtype=torch.bool))
        open_ = self._left_open() if self._rounds % 3 else torch.eye(factors.rank).to(rows)
        outputs = torch.linalg.qr(factors.outputs @ open_)[0]
        room = int(_WORK / (len(rows) * factors.rank**2))
        each = _LATER if self._rounds else _FIRST
        count = min(each * factors.rank, max(_FEWEST, room))
        found = search(rows.float(), outputs.float(), count, generator)
        self.candidates.add(found.double())
        self.candidates.add_completions(*complete(factors, self._left_open(), generator))
        self.chosen = self.candidates.independent()
        self._count(factors.rank - len(self.chosen))
        if self.missing:
            return None
        self.chosen = improve(self.candidates, self.chosen)
        return assemble(factors, self.candidates.zeros[self.chosen])

    def doubt(self, batch: Batch) -> None:
        """Forget the direction whose input fits worst to its own zeros."""
        self.candidates.drop(self.chosen[batch.agreement.argmin()])
        self.missing = 1

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing was found for some rounds."""
        waited = self._rounds - self._last_new
        return waited >= (_PATIENCE if self._fewest == self.factors.rank else _STUCK)

    def _count(self, missing: int) -> None:
        self.missing, self._rounds = missing, self._rounds + 1
        doubtful = self.factors.rank - len(self.candidates.independent(sure=True))
        if doubtful < self._fewest:
            self._fewest, self._last_new = doubtful, self._rounds

    def _left_open(self) -> Tensor:
        """A basis of the p that are orthogonal to the directions found; shape (rank, open ones)."""
        chosen = self.candidates.independent(sure=True)
        taken = self.candidates.in_rows[chosen]
        free = (self.factors.rank - len(chosen)) or self.factors.rank
        basis: Tensor = torch.linalg.svd(taken, full_matrices=True)[2]
        return basis[-free:].T  # all of it where nothing is missing
