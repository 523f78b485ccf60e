"""Whether derivatives show all that a message tells of its inputs."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp

from gradveil._random import normal_like
from gradveil._tensors import Tensors
from gradveil.messages import Message, values_of
from gradveil.sensitivity import directional_derivatives, rounding_of, spread_of, values_at_others

LENGTH, STEPS = 0.5, 4
"""Of the paths along which differences are taken: so many spreads of the inputs, in so many
steps."""

MOST = 3 * 2**22
"""Numbers that are kept for one message; what is beyond that is computed again."""

GRAPH = 8
"""What the graph of a message is counted as, in messages."""


class Evaluations:
    """One message at given points, each value and each derivative computed once.

    Bounds of several mechanisms on the same message, which should not change, need it at the same
    points, as long as they draw the same random directions: give this and a generator with one seed
    to `mean_bound`. Results are found by the contents of points and directions; at most `most`
    numbers are kept.
    """

    def __init__(self, message: Message, most: int = MOST) -> None:
        self.message = message
        self._left = most
        self._known: dict[bytes, Any] = {}

    def values(self, inputs: Tensor) -> Tensors:
        """g(x)."""
        found: Tensors = self._once(values_of, inputs)
        return found

    def derivatives(self, point: Tensor, directions: Tensor) -> Tensors:
        """∂_v g(x) for each row v of `directions`."""
        found: Tensors = self._once(directional_derivatives, point, directions)
        return found

    def pull_back(self, point: Tensor) -> tuple[Tensors, Callable[[Tensors], tuple[Tensor]]]:
        """g(x), and the map u ↦ Jᵀu."""
        values, pull_back = self._once(vjp, point)
        return values, pull_back

    def _once(self, compute: Callable[..., Any], *tensors: Tensor) -> Any:
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
        values, size = (found[0], GRAPH) if isinstance(found, tuple) else (found, 1)
        numbers = size * sum(value.numel() for value in values.values())
        if numbers <= self._left:
            self._known[key], self._left = found, self._left - numbers
        return found


GROUPS = FEW = 16
"""Features are moved in at most so many groups, to find those that derivatives do not see. So few
are moved one by one, and far."""

FAR, FAR_STEPS = 2.0, 8
"""The same for paths of single features."""

LOCALLY, AROUND = 0.9, 0.5
"""The least shares that derivatives must explain: of each step, and of the whole paths."""


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
        if self.explained < LOCALLY:
            return (
                f"the message jumps or hides: derivatives explain {self.explained:.0%} of how it"
                " changes over small steps (ReLU, max-pooling, detach, rounding)"
            )
        if self.represented < AROUND:
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
        """Of few features a long path of each by itself, in all examples; of many one small step
        of each group.
        """
        features = inputs[0].numel()
        few = features <= FEW
        size = FAR / FAR_STEPS if few else LENGTH / STEPS
        order = torch.randperm(features, generator=generator).to(inputs.device)
        step, least = size * spread_of(inputs) * normal_like(inputs, generator), 1.0
        for group in order.split(-(-features // GROUPS)):
            mask = torch.zeros(features, dtype=inputs.dtype, device=inputs.device)
            mask[group] = 1
            own = step * mask.view(inputs.shape[1:])
            if few:
                seen, moved = self._along(inputs, own, FAR_STEPS)
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
