"""Fisher information about the inputs, of a message and of the noise levels planned from them.

And whether derivatives show all that a message tells of its inputs (`Smoothness`).
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.func import jvp, vjp

from gradveil._checks import (
    WrongValue,
    check_count,
    check_finite,
    check_inputs,
    check_methods,
    check_values,
)
from gradveil._random import generator_or_fresh, normal_like
from gradveil._tensors import Tensors, flatten, total
from gradveil.mechanisms import AnyMechanism, Mechanism, check_mechanism
from gradveil.messages import (
    Message,
    check_message,
    each_row,
    embedded,
    explained,
    takes_tokens,
    values_of,
)
from gradveil.sensitivity import (
    Estimator,
    Moments,
    check_moments,
    chunk_size,
    directional_derivatives,
    draw_probes,
    measure,
    rounding_of,
    spread_of,
    unit_vectors,
    values_at_others,
)

if TYPE_CHECKING:
    from gradveil.defenses import Defense


class BoundCase(NamedTuple):
    """One batch of the population, and what is done to its message.

    >>> from gradveil.mechanisms import Mechanism
    >>> from gradveil.theory import mean_bound
    >>> double = lambda inputs: {"w": 2 * inputs.sum(0)}
    >>> batches = torch.arange(24.0).reshape(8, 1, 3)
    >>> cases = [BoundCase(double, batch, Mechanism(std=1.0)) for batch in batches]
    >>> mean_bound(cases).per_entry
    0.25
    """

    message: Message
    inputs: Tensor
    mechanism: AnyMechanism


JACOBIAN_LIMIT, COLUMNS = 2**28, 2**14
"""Up to how many numbers the Jacobian is held in memory, and its columns in float64 at a time."""


def fisher_trace(moments: Moments, mechanism: AnyMechanism) -> float:
    """tr J_D = Σ_i w_i E‖∇_x g_i‖², with w_i the mechanism's information (1/Σ_ii for noise).

    Infinite where an entry that depends on the data is sent without noise, and where derivatives do
    not show all that the message tells (`Moments.hidden`). For a mechanism that clips, moments over
    several batches must have been measured with the same `clip`.

    >>> moments = Moments({"w": torch.ones(2)}, {"w": torch.tensor([3.0, 1.0])}, input_size=5)
    >>> fisher_trace(moments, Mechanism(std=0.5))
    16.0
    """
    check_moments(moments)
    check_mechanism(mechanism)
    return float("inf") if moments.hidden else seen_trace(moments, mechanism)


def seen_trace(moments: Moments, mechanism: AnyMechanism) -> float:
    """Σ_i w_i E‖∇_x g_i‖², with what stands for the sensitivity of hidden entries."""
    entries = entry_information(moments, mechanism)
    return float(total(entries.values()))


def entry_information(moments: Moments, mechanism: AnyMechanism) -> Tensors:
    """w_i E‖∇_x g_i‖², what each entry adds to the trace."""
    clip = mechanism.clip if isinstance(mechanism, Mechanism) else None
    if isinstance(clip, (int, float)) and moments.clip != clip:
        moments = moments.clipped(float(clip))
    values = {name: square.sqrt() for name, square in moments.squared_values.items()}
    if moments.clip is not None and moments.count != 1 and isinstance(mechanism, Mechanism):
        mechanism = Mechanism(mechanism.std, mechanism.keep)  # the clip is in the moments already
    weights = mechanism.information(values)
    squares = moments.known_squared_sensitivities  # where they are 0, no weight counts
    return {n: torch.where(s > 0, weights[n] * s, 0.0) for n, s in squares.items()}


LENGTH, STEPS = 0.5, 4
"""Of the paths along which differences are taken: in spreads of the inputs, and how many steps."""


class Evaluations:
    """One message at given points, each value and each derivative computed once.

    Bounds of several mechanisms on the same message, which should not change, need it at the same
    points, as long as they draw the same random directions: give this and a generator with one seed
    to `mean_bound`. Results are found by the contents of points and directions; at most `most`
    numbers are kept.
    """

    def __init__(self, message: Message, most: int = 3 * 2**22) -> None:
        self.message = message
        self._left = most
        self._known: dict[bytes, Any] = {}

    def values(self, inputs: Tensor) -> Tensors:
        """g(x)."""
        found: Tensors = self.once(values_of, inputs)
        return found

    def derivatives(self, point: Tensor, directions: Tensor) -> Tensors:
        """∂_v g(x) for each row v of `directions`."""
        found: Tensors = self.once(directional_derivatives, point, directions)
        return found

    def once(self, compute: Callable[..., Any], *tensors: Tensor) -> Any:
        """What a function makes of the message and these tensors, found by their contents."""
        if self._left <= 0:
            return compute(self.message, *tensors)
        digest = hashlib.sha256(compute.__name__.encode())
        for tensor in tensors:
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        key = digest.digest()
        if key in self._known:
            return self._known[key]
        found = compute(self.message, *tensors)
        values, size = (found[0], 8) if isinstance(found, tuple) else (found, 1)  # with a graph
        numbers = size * sum(value.numel() for value in values.values())
        if numbers <= self._left:
            self._known[key], self._left = found, self._left - numbers
        return found


@dataclass(frozen=True)
class Smoothness:
    """What derivatives see of a message, in the weights w_i that entries have in J_F.

    The Cramér-Rao argument needs a message that changes smoothly with the inputs, and J_F at
    batches that stand for the data. Where the message moves without a derivative, or jumps (a unit
    switches on, another pixel wins the pooling), the information is larger than derivatives say,
    and the bound too large.
    """

    hidden: int = 0
    """Entries without a derivative that move with the inputs all the same."""
    seen: float = 0.0
    """Σ w_i (h ∂_v g_i)² over the steps of all paths, in the middle of each step."""
    moved: float = 0.0
    """Σ w_i (Δg_i)² over the same steps."""
    at_batches: float = 0.0
    """Σ w_i (h ∂_v g_i)² at the batches themselves, for as many steps."""
    least_seen: float = 1.0
    """The least share that derivatives explain when one group of features moves."""

    def __add__(self, other: "Smoothness") -> "Smoothness":
        return Smoothness(
            max(self.hidden, other.hidden),
            self.seen + other.seen,
            self.moved + other.moved,
            self.at_batches + other.at_batches,
            min(self.least_seen, other.least_seen),
        )

    @property
    def explained(self) -> float:
        """The share of the change along the paths that derivatives explain, at most 1."""
        return min(1.0, self.seen / self.moved, self.least_seen) if self.moved > 0 else 1.0

    @property
    def represented(self) -> float:
        """The share of the change along the paths that J_F at the batches has, at most 1."""
        return min(1.0, self.at_batches / self.moved) if self.moved > 0 else 1.0

    @property
    def reason(self) -> str:
        """Why a bound does not hold; empty where it does."""
        if self.hidden:
            return (
                f"{self.hidden} entries move with the inputs although they have no derivative here"
                " (detach, rounding, an index, units that switch on)"
            )
        if self.explained < 0.9:  # of each step
            return (
                f"the message jumps or hides: derivatives explain {self.explained:.0%} of how it"
                " changes over small steps (ReLU, max-pooling, detach, rounding)"
            )
        if self.represented < 0.5:  # of the whole paths
            return (
                f"the information at the batches is {self.represented:.0%} of what it is around"
                " them: they are too few to stand for the data"
            )
        return ""


class Look:
    """Derivatives and differences of what is left of a message before noise, by `clamp`.

    The weights are 1/Σ_ii of each entry that is sent; infinite where it is sent bare.
    """

    def __init__(
        self, message: Evaluations, clamp: Callable[[Tensors], Tensors] | None, weights: Tensors
    ) -> None:
        self.message, self.clamp, self.sent = message, clamp, weights
        self.weights = {n: w.masked_fill(w.isinf(), 0.0).double() for n, w in weights.items()}

    def smoothness(self, inputs: Tensor, generator: torch.Generator, *, groups: bool) -> Smoothness:
        """Compare derivatives with differences around one batch, of groups of features, too.

        Where the message does not accept inputs that are a small step away (an index out of range),
        nothing is proven: all of it counts as hidden.
        """
        values = self.message.values(inputs)  # an error of the message itself is raised as it is
        try:
            found = self.path(inputs, generator)
            if groups:
                found += self.features(inputs, generator)
        except (RuntimeError, ValueError, IndexError):
            return Smoothness(hidden=sum(value.numel() for value in values.values()))
        return found + Smoothness(hidden=self.hidden(inputs, values, generator))

    def path(self, inputs: Tensor, generator: torch.Generator) -> Smoothness:
        """Steps from the batch along one direction, each step with its derivative."""
        step = LENGTH / STEPS * spread_of(inputs) * normal_like(inputs, generator)
        seen, moved = self._along(inputs, step, STEPS)
        start = STEPS * self._slope(inputs, step)
        return Smoothness(seen=seen, moved=moved, at_batches=start)

    def features(self, inputs: Tensor, generator: torch.Generator) -> Smoothness:
        """Of up to 16 features a path of each by itself, two spreads long and in all examples.

        Of more one small step of each of 16 groups, to find those that derivatives do not see.
        """
        features = inputs[0].numel()
        few = features <= 16
        size = 2.0 / 8 if few else LENGTH / STEPS
        order = torch.randperm(features, generator=generator).to(inputs.device)
        step, least = size * spread_of(inputs) * normal_like(inputs, generator), 1.0
        for group in order.split(-(-features // 16)):
            mask = torch.zeros(features, dtype=inputs.dtype, device=inputs.device)
            mask[group] = 1
            own = step * mask.view(inputs.shape[1:])
            if few:
                seen, moved = self._along(inputs, own, 8)
            else:
                moved = self._change(inputs - own / 2, inputs + own / 2)
                seen = self._slope(inputs, own)
            least = min(least, seen / moved) if moved > 0 else least
        return Smoothness(least_seen=least)

    def _along(self, inputs: Tensor, step: Tensor, steps: int) -> tuple[float, float]:
        """What derivatives see of the steps of a path, and how the message moves."""
        points = [inputs + place * step for place in range(steps + 1)]
        moved = sum(self._change(*ends) for ends in pairwise(points))
        return sum(self._slope(point + step / 2, step) for point in points[:-1]), moved

    def _change(self, start: Tensor, end: Tensor) -> float:
        """Σ w_i (Δg_i)² of what is sent."""
        a, b = (self._clamped(self.message.values(point)) for point in (start, end))
        return self._energy({name: b[name] - a[name] for name in a})

    def _slope(self, point: Tensor, step: Tensor) -> float:
        """Σ w_i (h ∂_v g_i)², 0 where clamping makes what is sent constant."""
        tangents = self.message.derivatives(point, step.unsqueeze(0))
        slopes = {name: tangent[0] for name, tangent in tangents.items()}
        if self.clamp is not None:
            values = self.message.values(point)
            clamped = self._clamped(values)
            slopes = {n: slope * (clamped[n] == values[n]) for n, slope in slopes.items()}
        return self._energy(slopes)

    def _clamped(self, values: Tensors) -> Tensors:
        return values if self.clamp is None else self.clamp(values)

    def _energy(self, change: Tensors) -> float:
        parts = (change[n].double().square() * weight for n, weight in self.weights.items())
        return sum(float(part.sum()) for part in parts)

    def hidden(self, inputs: Tensor, values: Tensors, generator: torch.Generator) -> int:
        """How many entries are sent, have no derivative, and move for other inputs."""
        step = normal_like(inputs, generator).unsqueeze(0) * spread_of(inputs)
        tangents = self.message.derivatives(inputs, step)
        others = [other for _, other in values_at_others(self.message.values, inputs, generator)]
        rounding, count = rounding_of(values), 0
        for name, weight in self.sent.items():
            silent = (weight > 0) & (tangents[name][0] == 0)
            for other in others if bool(silent.any()) else []:
                moves = (other[name] - values[name]).abs() > rounding
                count += int((silent & moves).sum())
                silent = silent & ~moves
        return count


class FisherInformation:
    """J_F(x) = Σ_i w_i ∇g_i ∇g_iᵀ as a linear operator: v ↦ Jᵀ (w ⊙ J v), without the matrix.

    An infinite w_i counts as 0: see `is_infinite`. `known` has values and derivatives that may have
    been computed before.
    """

    def __init__(
        self,
        message: Message,
        inputs: Tensor,
        mechanism: AnyMechanism,
        known: Evaluations | None = None,
    ) -> None:
        check_inputs(inputs, tokens=takes_tokens(message))
        message, inputs = embedded(message, inputs)
        self.message, self.inputs, self.mechanism = message, inputs, mechanism
        if known is None or known.message is not message:
            known = Evaluations(message, most=0)
        self._known = known
        with explained(message, inputs):
            values, self._pull_back = known.once(vjp, inputs)
        check_values(values, "message(inputs)")
        check_finite(values, "message(inputs)")
        self.values = {name: value.detach() for name, value in values.items()}
        self.size = inputs.numel()
        self._entries = sum(value.numel() for value in values.values())
        self._chunk = chunk_size(values)
        information = mechanism.information(self.values)
        self._bare = {name: w.isinf() for name, w in information.items()}
        self._weights = {n: w.masked_fill(self._bare[n], 0.0) for n, w in information.items()}

    def __call__(self, rows: Tensor) -> Tensor:
        """J_F v for each row v of a (k, m) tensor."""

        def pull_back(*row: Tensor) -> Any:
            return self._pull_back(dict(zip(self._weights, row, strict=True)))[0]

        products = []
        for block in rows.to(self.inputs.dtype).split(self._chunk):
            directions = block.view(-1, *self.inputs.shape)
            tangents = directional_derivatives(self.message, self.inputs, directions)
            weighted = [weight * tangents[name] for name, weight in self._weights.items()]
            products.append(each_row(pull_back, *weighted).reshape(block.shape))
        return torch.cat(products).to(rows.dtype)

    def squares(self, rows: Tensor) -> Tensor:
        """vᵀ J_F v = Σ_i w_i (∂_v g_i)² for each row v, in float64."""
        found = []
        for block in rows.to(self.inputs.dtype).split(self._chunk):
            directions = block.view(-1, *self.inputs.shape)
            tangents = self._known.derivatives(self.inputs, directions)
            each = [
                t.reshape(len(t), -1).double().square() @ self._weights[name].flatten().double()
                for name, t in tangents.items()
            ]
            found.append(torch.stack(each).sum(0))
        return torch.cat(found)

    def matrix(self) -> Tensor:
        """The dense (m, m) matrix, in float64."""
        if self.size * self._entries <= JACOBIAN_LIMIT:
            return self._from_jacobian()
        found = self(torch.eye(self.size, device=self.inputs.device).double())
        values, vectors = torch.linalg.eigh((found + found.T) / 2)
        nearest: Tensor = (vectors * values.clamp(min=0)) @ vectors.T  # rounding takes nothing away
        return nearest

    def is_infinite(self) -> bool:
        """Whether an entry that depends on the inputs is sent without noise.

        One Gaussian direction tells: an entry with ∇g_i ≠ 0 changes along it almost surely.
        """
        if not any(bool(bare.any()) for bare in self._bare.values()):
            return False
        direction = normal_like(self.inputs[None], torch.Generator().manual_seed(0))
        tangents = self._known.derivatives(self.inputs, direction)
        return any(bool(tangents[n][0][bare].any()) for n, bare in self._bare.items())

    def smoothness(self, generator: torch.Generator, groups: bool = True) -> Smoothness:
        """What derivatives see of the message here, before noise, clamped entries included."""
        mechanism, sent = self.mechanism, None
        if isinstance(mechanism, Mechanism) and mechanism.clip is not None:
            sent = Mechanism(0.0, clip=mechanism.clip).mean
            mechanism = Mechanism(mechanism.std, mechanism.keep)
        weights = mechanism.information(self.values)
        return Look(self._known, sent, weights).smoothness(self.inputs, generator, groups=groups)

    def _from_jacobian(self) -> Tensor:
        """(J √w)ᵀ (J √w): twice as fast as products, where the Jacobian fits into memory.

        Summed in float64: rounding in float32 leaves negative eigenvalues of the size of 1e-7 times
        the largest, which is more than a prior where the noise is small.
        """
        roots = {name: weight.sqrt() for name, weight in self._weights.items()}
        rows = []
        for axes in unit_vectors(self.inputs, self._chunk):
            tangents = directional_derivatives(self.message, self.inputs, axes)
            flat = [(t * roots[n]).reshape(len(t), -1) for n, t in tangents.items()]
            rows.append(torch.cat(flat, dim=1))
        total = torch.zeros(self.size, self.size, dtype=torch.float64, device=self.inputs.device)
        for block in torch.cat(rows).split(COLUMNS, dim=1):
            wide = block.double()
            total.addmm_(wide, wide.T)
        return total


class MeanInformation:
    """J_D, the mean of J_F over batches of one shape, as a linear operator."""

    def __init__(self, parts: Sequence[FisherInformation]) -> None:
        self.parts = parts
        self.size, self.examples = parts[0].size, len(parts[0].inputs)
        self.dtype, self.device = parts[0].inputs.dtype, parts[0].inputs.device

    def __call__(self, rows: Tensor) -> Tensor:
        """J_D v for each row v."""
        return torch.stack([part(rows) for part in self.parts]).mean(0)


def largest_information(
    cases: Sequence[BoundCase], generator: torch.Generator | None = None
) -> float:
    """The largest eigenvalue of J_D, the mean information over batches: λ.

    Whoever sees the inputs themselves with noise of 1 / √λ knows at least as much of every
    direction: the level for `LearnedPrior.measure`.
    """
    information = MeanInformation([FisherInformation(*case) for case in cases])
    return largest_eigenvalue(information, generator_or_fresh(generator))


def largest_eigenvalue(information: MeanInformation, generator: torch.Generator) -> float:
    """By Lanczos' three-term recurrence: from below, and nearly reached.

    What grows slowly need not be near its limit: a start has a share of 1 / n in the direction that
    is looked for. So it is the residual that has to be small, unless 40 products are made.
    """
    blank = torch.empty(1, information.size, dtype=torch.float64)
    row: Tensor = normal_like(blank, generator).to(information.device)
    row, last, off = row / row.norm(), torch.zeros_like(row), 0.0
    most, value = min(40, information.size), 0.0
    matrix = torch.zeros(most, most, dtype=torch.float64)
    for k in range(most):
        product = information(row) - off * last
        matrix[k, k] = middle = float((product * row).sum())
        product -= middle * row
        off = float(product.norm())
        values, vectors = torch.linalg.eigh(matrix[: k + 1, : k + 1])
        value = float(values[-1])
        if k + 1 == most or not off * abs(float(vectors[-1, -1])) > 1e-4 * value:
            break
        matrix[k, k + 1] = matrix[k + 1, k] = off
        row, last = product / off, row
    return value


def plan_information(
    message: Message, inputs: Tensor, defense: "Defense", estimator: Estimator | str = "exact"
) -> Tensor:
    """½ Σ_i ∇_x log Σ_ii ∇_x log Σ_iiᵀ, the information in an x-dependent covariance, dense.

    For y ~ N(g(x), Σ(x)) the Fisher information has this term beside ∇g Σ⁻¹ ∇gᵀ. It does not
    depend on the scale of the noise. A plan from public data does not have it; in one from an
    earlier round it tells of that round's batch.

    The defense's noise levels must change smoothly with the inputs.

    >>> from gradveil import OptimalNoise
    >>> square = lambda inputs: {"w": inputs.square().sum(0)}
    >>> private = OptimalNoise(scale=1.0, source="private")
    >>> plan_information(square, torch.tensor([[1.0, 2.0]]), private).shape
    torch.Size([2, 2])
    """
    slope = _slopes(message, inputs, defense, estimator)
    columns = [slope(axis) for block in unit_vectors(inputs, 1) for axis in block]
    jacobian = torch.stack(columns, dim=1).double()
    return 0.5 * jacobian.T @ jacobian


def plan_information_trace(
    message: Message,
    inputs: Tensor,
    defense: "Defense",
    probes: int = 16,
    generator: torch.Generator | None = None,
    estimator: Estimator | str = "sketch",
) -> tuple[float, float]:
    """The trace of `plan_information` from random directions, and its standard error.

    E_v ½ Σ_i (∂_v log Σ_ii)² over directions with E[v vᵀ] = I.
    """
    slope = _slopes(message, inputs, defense, estimator)
    check_count(probes, "probes")
    directions = draw_probes(inputs, probes, generator_or_fresh(generator))
    samples = [0.5 * float(total([slope(v).square()])) for v in directions]
    return mean_and_error(torch.tensor(samples, dtype=torch.float64))


def mean_and_error(samples: Tensor) -> tuple[float, float]:
    """The mean of independent samples, and its standard error."""
    count = len(samples)
    error = float(samples.std()) / count**0.5 if count > 1 else float("nan")
    return float(samples.mean()), error


def _slopes(
    message: Message, inputs: Tensor, defense: "Defense", estimator: Estimator | str
) -> Callable[[Tensor], Tensor]:
    """v ↦ ∂_v log Σ_ii of the entries that get noise.

    The plan is measured with its own probes held fixed: so it is a smooth function of the inputs.
    """
    check_message(message)
    check_inputs(inputs)
    check_methods(defense, "defense", ("plan", "observe"), "`OptimalNoise(scale=0.1)`")

    def std(x: Tensor) -> Tensors:
        fixed = torch.Generator().manual_seed(0)
        found = getattr(defense.plan(measure(message, x, estimator, generator=fixed)), "std", None)
        if not isinstance(found, dict):
            named = f"{type(defense).__name__}, whose mechanism has no noise levels"
            raise WrongValue("defense", "add noise", named)
        return found

    noisy = {name: level > 0 for name, level in std(inputs).items()}

    def log_variances(x: Tensor) -> Tensors:
        return {n: 2 * torch.where(noisy[n], s, 1.0).log() for n, s in std(x).items()}

    return lambda v: flatten(jvp(log_variances, (inputs,), (v,))[1])
