"""Exact inversion of a fully connected ReLU layer that reads the inputs."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from gradveil._checks import WrongValue
from gradveil._random import generator_or_fresh, normal_like, seed_from
from gradveil._tensors import Tensors
from gradveil.messages import in_double

from ._attack import FINISHED, INTERRUPTED, TIME_BUDGET, Progress, Reconstruction, Search
from ._descent import Watch, clamp, sent_row
from ._model_layers import Call, input_layer, loss_of, noise_beside, random_inputs
from ._observation import Observation, check_observation
from ._targets import Run, labels_of, message_misfit


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
        limits = 6 * self.noise * directions.norm(dim=1, keepdim=True)
        return torch.le((directions @ self.rows.T).abs(), limits)


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
    noise, least = noise_beside(sizes, gradient.shape, rank), 1e-14 * float(sizes[0])
    noise = max(noise, 0.02 * precision, least)
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
        found = torch.cat([self.directions, found])
        zeros, sure = torch.cat([self.zeros, zeros]), torch.cat([self.sure, sure])
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


_ROUNDING = 1e-9
"""The relative squared misfit of a message that counts as rounding in single precision."""

Explained = tuple[Tensor, Tensor]  # the inputs of a whole batch in rows, and their labels


@dataclass(frozen=True)
class Problem:
    """An observation whose first layer shows the rank of the batch."""

    observation: Observation
    call: Call
    factors: Factors

    @property
    def noise_share(self) -> float:
        """Of the message's power."""
        sent = sent_row(self.observation).double()
        return self.factors.noise**2 * sent.numel() / float(sent.square().sum())

    def explained(self, batch: Batch) -> Reconstruction | None:
        """The whole batch with its labels, if it makes the message that was sent."""
        is_update = self.observation.local is not None
        explained = self._in_order(batch) if is_update else self._with_labels(batch)
        if explained is None:
            return None
        found = self._as_found(explained)
        if found.loss <= _ROUNDING:
            return found
        if is_update or self.noise_share < _ROUNDING / 10:
            return None
        found = self._as_found(self._polished(explained))
        # units whose sign noise turns add to the misfit: most others must be met
        own = self.observation.message(found.targets)(found.inputs)[self.call.weight]
        error = (own - self.observation.sent[self.call.weight]).double().square().mean(dim=1)
        met = float((error < 1.5 * self.factors.noise**2).double().mean())
        return found if found.loss < 1.5 * self.noise_share + 0.1 and met > 0.8 else None

    def output_gradients(
        self, inputs: Tensor, labels: Tensor, parameters: Tensors | None = None
    ) -> Tensor:
        """∂L/∂u of each example in float64, as in a whole batch; shape (examples, units).

        The batch is filled up with the first example, so that means are right.
        """
        observation, layer, count = self.observation, self.call.layer, len(inputs)
        missing = max(0, observation.batch_size - count)
        places = torch.cat([torch.arange(count), torch.zeros(missing, dtype=torch.long)])
        shaped = inputs[places].double().reshape(-1, *observation.input_shape)
        shift = shaped.new_zeros(len(places), layer.out_features, requires_grad=True)
        loss = loss_of(observation).double()
        with torch.enable_grad(), layer.register_forward_hook(lambda _, __, u: u + shift):
            value = loss(parameters or loss.parameters, shaped, labels[places])
        return torch.autograd.grad(value, shift)[0][:count, self.factors.units]

    def _of_each_label(self, inputs: Tensor, parameters: Tensors | None = None) -> Tensor:
        """The same for each label; shape (examples, classes, units)."""
        blank = torch.empty(len(inputs), dtype=torch.long, device=inputs.device)
        labels = range(self.observation.num_classes)
        each = [self.output_gradients(inputs, blank.fill_(n), parameters) for n in labels]
        return torch.stack(each, dim=1)

    def _with_labels(self, batch: Batch) -> Explained | None:
        """The labels of the inputs, and how often each occurs; `None` if that does not add up.

        An input that occurs with labels c_1, c_2, ... has the gradient Σ_i δ(c_i) at its outputs,
        each of which the attacker can compute.
        """
        every, size = self._of_each_label(batch.inputs), self.observation.batch_size
        missing = size - len(batch.inputs)
        if missing == 0:
            cosines = cosine_similarity(batch.deltas[:, None], every, dim=2)
            return batch.inputs, cosines.argmax(dim=1)
        pairs = zip(batch.deltas, every, strict=True)
        counts = torch.stack([_counts(own, each, missing) for own, each in pairs])
        if int(counts.sum()) != size:
            return None
        image, label = (p.repeat_interleave(counts[counts > 0]) for p in counts.nonzero().unbind(1))
        return batch.inputs[image], label

    def _in_order(self, batch: Batch) -> Explained | None:
        """The inputs in the order of the local steps, by playing these again.

        The gradient at an input's outputs, as the weight change shows it, has the direction of the
        one that its own label makes at the parameters of its own step. So each step takes those of
        the inputs left that fit best, and goes on from the parameters that they lead to.
        Repetitions are read from gradients only.
        """
        observation, inputs = self.observation, batch.inputs
        local = observation.local
        if local is None or len(inputs) < observation.batch_size:
            return None
        blank = torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)
        message = in_double(local.message(observation.model, observation.loss_fn, blank))
        now = message.parameters
        velocity = {name: torch.zeros_like(value) for name, value in now.items()}
        left, labels, order = torch.arange(len(inputs)), blank.clone(), torch.empty_like(blank[:0])
        while len(left) > 0:
            every = self._of_each_label(inputs[left], now)
            fits, own = cosine_similarity(-batch.deltas[left][:, None], every, dim=2).max(dim=1)
            best = fits.argsort(descending=True)[: local.batch_size or len(left)]
            labels[left[best]] = own[best]
            taken, order = left[best], torch.cat([order, left[best]])
            shaped = inputs[taken].reshape(-1, *observation.input_shape)
            gradient = message.gradient_at(now, labels[taken])(shaped)
            now, velocity = message.advance(now, velocity, gradient)
            left = left[~torch.isin(left, taken)]
        return inputs[order], labels[order]

    def _polished(self, explained: Explained) -> Explained:
        """Inputs that fit the layer's gradient in all units, X ← Δ(X)⁺ ∂L/∂W, in a few rounds.

        What was found from zeros uses each example's inactive units; Δ(X), the gradients at the
        outputs that the inputs themselves make, uses all units and averages over more noise.
        """
        seen, gradient = self.observation, self.factors.rows @ self.factors.basis
        inputs, labels = explained
        for _ in range(3):
            shaped = clamp(inputs.reshape(-1, *seen.input_shape), seen.low, seen.high)
            deltas = self.output_gradients(shaped, labels)
            inputs = (torch.linalg.pinv(deltas.T) @ gradient)[:, :-1]
        return inputs, labels

    def _as_found(self, explained: Explained) -> Reconstruction:
        """In the shape, dtype, range and order of the batch, with the misfit of the message.

        The order is that of labels which are granted and fit.
        """
        observation, like = self.observation, next(iter(self.observation.sent.values()))
        inputs, labels = explained
        shape = (observation.batch_size, *observation.input_shape)
        inputs = clamp(inputs.to(like).reshape(shape), observation.low, observation.high)
        ordered = observation.local is not None and observation.local.batch_size is not None
        wanted = None if ordered or observation.labels is None else observation.labels.cpu()
        order = torch.arange(len(labels))
        if wanted is not None and torch.equal(labels.sort()[0], wanted.sort()[0]):
            order[wanted.argsort(stable=True)] = labels.argsort(stable=True)
        inputs, labels = inputs[order], labels[order].to(like.device)
        misfit = message_misfit(observation, inputs, labels)
        return Reconstruction(inputs, labels, misfit, is_certain=True)


def problem_of(observation: Observation, generator: torch.Generator) -> Problem | None:
    """The problem; `None` where the method does not apply."""
    if observation.task != "classification":  # labels are found by trying every class
        return None
    call = input_layer(observation, generator)
    if call is None or call.inputs.dim() != 2:
        return None
    if min(call.layer.weight.shape) <= observation.batch_size:
        return None
    factors = factors_of(observation.sent, call, observation.batch_size)
    if factors is None:
        return None
    problem, probe = Problem(observation, call, factors), random_inputs(observation, 16, generator)
    labels = torch.zeros(16, dtype=torch.long, device=probe.device)
    zeros = float((problem.output_gradients(probe, labels) == 0).double().mean())
    # units must be inactive for some inputs, and not for all; and where noise explains much of a
    # message, a small misfit says too little
    return problem if 0.02 < zeros < 1 and problem.noise_share <= 0.2 else None


def _counts(own: Tensor, each: Tensor, missing: int) -> Tensor:
    """How often one input occurs with each label: the whole numbers that fit best."""
    size = each.norm(dim=1).mean()
    best, least = torch.zeros(len(each), dtype=torch.long), torch.inf
    system = torch.cat([each.T, size.expand(1, len(each))])
    for total in range(1, missing + 2):
        target = torch.cat([own, (size * total)[None]])
        solved = torch.linalg.lstsq(system, target[:, None], driver="gelsd").solution[:, 0]
        counts = solved.round().clamp_min(0)
        misfit = float((own - counts @ each).norm())
        if misfit < least and int(counts.sum()) == total:
            best, least = counts.long(), misfit
    return best


@dataclass(frozen=True)
class ExactInversion(Search):
    """All inputs of a batch, exactly, from the gradient of a fully connected ReLU layer.

    For u = W x + b the gradients are [∂L/∂W, ∂L/∂b] = Δ [X, 1] with Δ the gradients at the outputs,
    one column for each example: a matrix whose rank is the batch size. Its factors are known up to
    one invertible matrix Q, and ReLU tells which: where a unit is inactive, Δ is 0, so each column
    of Δ is a vector with many zeros in a known subspace.

    1. Low-rank factors; the rank and the noise are read from the singular values (`Factors`).
    2. Sparse vectors of the column space by reweighted least squares from many starts, guided by
       what outputs are possible (`search`). The published method samples units and takes null
       directions, which needs about 2^(batch size) samples.
    3. The inputs by Q⁻¹, their lengths from the bias (`assemble`).
    4. Labels and repetitions from the gradients that each label would make (`Problem`). Labels that
       the threat model grants are used for the order only.
    5. The batch counts as found if it makes the message that was sent, up to rounding or up to the
       noise that the singular values show.

    FedAvg's weight change is Δ [X, 1], too, with Δ summed over the local steps; zeros are units
    that stay inactive all along.

    Reference: Dimitrov et al., "SPEAR: Exact Gradient Inversion of Batches in Federated Learning",
    NeurIPS 2024, for the factors, the sparsity and the exactness; the search is this project's.

    Args:
        rounds: How often the search starts again for what is still missing.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import NoDefense
    >>> from gradveil.attacks import observe
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 8, 2], activation="relu")
    >>> private = torch.tensor([[0.2, 0.7, 0.4]]), torch.tensor([1])
    >>> seen = observe(model, cross_entropy, private, NoDefense(), num_classes=2)
    >>> ExactInversion()(seen).inputs.round(decimals=2)
    tensor([[0.2000, 0.7000, 0.4000]])
    """

    rounds: int = 30

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; noise where nothing was found. `loss` is the relative misfit of the message.

        A message that the method does not apply to is an error.
        """
        check_observation(observation)
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        problem = problem_of(observation, _own(generator))
        if problem is None:
            raise WrongValue(
                "observation",
                "be of a model that starts with a trainable `nn.Linear` with a bias and ReLU, of a"
                " batch smaller than that layer, and of a message whose rank noise and pruning do"
                " not hide",
                "one that the method does not apply to",
                "Use `InvertingGradients`.",
            )
        found = self._search(problem, _own(generator), watch, self.progress)
        if isinstance(found, Reconstruction):
            return found
        return Run(observation, labels_of(observation, generator), generator, watch).blank(found)

    def solve(self, run: Run) -> Reconstruction | None:
        """The batch; `None` where it is not found. The generator keeps its state."""
        own = _own(run.generator)
        problem = problem_of(run.observation, own)
        found = None if problem is None else self._search(problem, own, run.watch, run.progress)
        if found == INTERRUPTED:
            return replace(run, generator=own).blank(INTERRUPTED)
        return found if isinstance(found, Reconstruction) else None

    def _search(
        self, problem: Problem, generator: torch.Generator, watch: Watch, progress: Progress | None
    ) -> Reconstruction | str:
        """The batch, or the status with which the search for it ended."""
        hunt = Hunt(problem.factors)
        try:
            for number in range(self.rounds):
                if progress is not None:
                    progress(number, self.rounds, hunt.missing / problem.factors.rank)
                if watch.is_over():
                    return TIME_BUDGET
                batch = hunt.run(generator)
                found = None if batch is None else problem.explained(batch)
                if found is not None:
                    return found
                if hunt.is_hopeless:
                    break
        except KeyboardInterrupt:
            return INTERRUPTED
        return FINISHED


def _own(generator: torch.Generator) -> torch.Generator:
    """A generator of the same state's seed: the given one draws nothing here."""
    return torch.Generator().manual_seed(seed_from(generator))
