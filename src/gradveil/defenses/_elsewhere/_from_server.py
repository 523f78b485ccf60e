"""A defense that takes the shape of its plan from the server."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gradveil._checks import check_kind, check_positive, check_ratio
from gradveil._tensors import unflatten
from gradveil._typing import Tensors
from gradveil.mechanisms import AnyMechanism, Mechanism, RoundingMechanism, constant_like
from gradveil.messages import Message
from gradveil.plans import Shape
from gradveil.sensitivity import Moments, check_moments

from .._base import Defense
from .._micro_batches import checked_values
from .._optimal_noise import OptimalNoise
from .._optimal_pruning import OptimalPruning
from .._optimal_rounding import OptimalRounding
from .._planning import Wrapper, keep_lowest
from ._limited import check_few_factors, limited_levels

PLANNING = (OptimalNoise, OptimalPruning, OptimalRounding)

_PLANS: WeakKeyDictionary[Shape, dict[Any, AnyMechanism]] = WeakKeyDictionary()
"""Mechanisms by shape and kind: one plan for all steps, and clients of a process, that share it."""


class FromServer(Wrapper):
    """Noise, pruning or rounding in a shape that the server sends; the client sets the amount.

    The server says where more noise goes (`use`), the client how much there is: nothing is
    measured, and a step costs what isotropic noise costs. Before the first shape all levels are
    equal. The shape is public, so the mechanism says nothing of the private batch.

    With relative levels r_i the noise has the variances

        Σ_ii = scale² ((1 - floor²) r_i / mean(r) + floor²),    r_i ≤ cap · geometric mean of r.

    Formal guarantees, for every shape that a server may send, by design or by mistake: no entry
    has a standard deviation below `floor` times the scale, and their root mean square is the scale.
    What is sent is isotropic noise of floor · scale, and more noise on top of it that does not
    depend on the batch; so whatever holds for `GradientNoise(floor * scale)` holds here. A few
    entries cannot soak up the noise either: whatever one in a hundred asks for, the others keep
    nine tenths of the scale in root mean square (with the default `cap`). For rounding all of this
    holds of the steps. Pruning sends the share of entries that the client says.

    A hostile server can still choose where noise is larger, put the entries that it wants to read
    at the floor, and, of pruning, choose which entries are sent. Pruning without noise and rounding
    have no guarantee at all. A larger `floor` leaves a server less to choose.

    The wrapped defense's own limits on measured ratios (`cap`, `floor`, `least`) and its estimator
    are not used. It must know its amount: `utility_budget` and `target_error` need examples.

    Args:
        defense: `OptimalNoise`, `OptimalDPSGD`, `OptimalPruning` or `OptimalRounding`.
        floor: The least standard deviation over the scale, in [0, 1]; 1 is isotropic noise. What it
            costs an honest server: 0.05 less than 1 % of the gain on the MNIST CNN, a tenth of it
            on a fresh CIFAR ConvNet-16, whose layers differ by 1e4 (12.9 instead of 14.2); there
            0.25 leaves 4.7, and 1 % to 4 % elsewhere.
        cap: The largest level that counts, over the geometric mean of all.

    >>> defense = FromServer(OptimalNoise(scale=0.1), floor=0.5)
    >>> defense.use(Shape({"w": (torch.tensor([1.0, 1.0, 1e20]),)}))
    >>> std = defense.plan(Moments.of_values({"w": torch.zeros(3)}, 1)).std["w"]
    >>> bool((std >= 0.05).all()), round(float(std.square().mean()), 6)
    (True, 0.01)
    """

    plan_from = "server"

    def __init__(self, defense: Defense, floor: float = 0.05, cap: float = 10.0) -> None:
        advice = "Use for example `OptimalNoise(scale=0.1)`."
        check_kind(defense, "defense", PLANNING, advice)
        check_ratio(floor, "floor")
        check_positive(cap, "cap")
        _check_amount(defense)
        self.defense, self.floor, self.cap = defense, floor, cap
        self._shape: Shape | None = None

    def use(self, shape: Shape) -> None:
        """Plan with this shape from now on; that it fits is seen when there is a message."""
        check_kind(shape, "shape", Shape, "Give the one that the server sent.")
        check_few_factors(shape)
        self._shape = shape

    @property
    def shape(self) -> Shape | None:
        """The last shape; `None` before the first."""
        return self._shape

    def observe(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """The message's values; its moments hold names and sizes, and 0 for all numbers."""
        values = checked_values(message, inputs)
        return values, Moments(constant_like(0.0, values), None, inputs.numel())

    def plan(self, moments: Moments) -> AnyMechanism:
        """The mechanism in the server's shape; of the moments only names and sizes are used."""
        check_moments(moments)
        like = moments.squared_values
        if self._shape is None:
            return self._planned(Shape.isotropic(like), like)
        plans = _PLANS.setdefault(self._shape, {})
        sizes = [(name, v.shape, v.dtype, v.device) for name, v in like.items()]
        key = (repr(self.defense), self.floor, self.cap, *sizes)
        if key not in plans:
            plans[key] = self._planned(self._shape, like)
        return plans[key]

    def _planned(self, shape: Shape, like: Mapping[str, Tensor]) -> AnyMechanism:
        levels = limited_levels(shape, like, self.cap)
        if self.defense.granularity == "layer":
            for level in unflatten(levels, like).values():
                level.fill_(level.square().mean().sqrt())
        return self._mechanism(levels, dict(like))

    def _mechanism(self, levels: Tensor, like: Tensors) -> AnyMechanism:
        defense = self.defense
        if isinstance(defense, OptimalRounding):
            return RoundingMechanism(_as(self._spread(levels, defense.step), like))
        if isinstance(defense, OptimalPruning):
            assert defense.ratio is not None
            kept = keep_lowest(levels, len(levels) - round(defense.ratio * len(levels)))
            return Mechanism(_as(self._noise_on(kept, levels), like), _as(kept, like))
        assert isinstance(defense, OptimalNoise)
        assert defense.scale is not None
        std = _as(self._spread(levels, defense.scale), like)
        return Mechanism(std, constant_like(1.0, like), defense.clip)

    def _noise_on(self, kept: Tensor, levels: Tensor) -> Tensor:
        """Standard deviations on the entries that are sent; 0 elsewhere."""
        assert isinstance(self.defense, OptimalPruning)
        noise = self.defense.noise
        if noise is None or not kept.any():
            return torch.zeros_like(levels)
        assert noise.scale is not None
        spread = kept * levels if isinstance(noise, OptimalNoise) else kept.clone()
        return self._spread(spread, noise.scale, float(kept.sum())).mul_(kept)

    def _spread(self, levels: Tensor, amount: float, entries: float | None = None) -> Tensor:
        """Standard deviations; the levels are overwritten."""
        mean = float(levels.sum()) / (entries or max(1, len(levels)))
        least = self.floor**2
        return levels.mul_((1 - least) / mean).add_(least).sqrt_().mul_(amount)

    @property
    def label(self) -> str:
        """The wrapped defense's, after "server-planned"."""
        return f"server-planned {self.defense.label}"

    @property
    def needs_sensitivities(self) -> bool:
        """Never."""
        return False

    @property
    def reads_moments(self) -> bool:
        """Never."""
        return False

    @property
    def plan_is_private(self) -> bool:
        """Not unless a subclass observes or responds in a way of its own."""
        return self.steps_unlike(FromServer)

    def without_memory(self) -> "FromServer":
        """A copy with its shape, which all know: it came from the server."""
        return deepcopy(self)

    def state_dict(self) -> dict[str, Any]:
        """The last shape, by parameter name; nothing before the first."""
        if self._shape is None:
            return {}
        return {"shape": {name: list(parts) for name, parts in self._shape.factors.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        check_kind(state, "state", dict, "Use what `state_dict` returned.")
        if state.keys() - {"shape"}:
            raise ValueError(
                "Parameter `state` should have the key ['shape'], or none. Found"
                f" {sorted(state)}. Use what `state_dict` returned."
            )
        self.reset()
        if state:
            self.use(Shape({name: tuple(parts) for name, parts in state["shape"].items()}))

    def reset(self) -> None:
        """Forget the shape: equal levels until the next one."""
        self._shape = None

    def __repr__(self) -> str:
        return f"FromServer({self.defense!r}, floor={self.floor}, cap={self.cap})"


def _as(row: Tensor, like: Tensors) -> Tensors:
    """The parts of a row in the shape, type and place of each parameter."""
    return {name: part.to(like[name]) for name, part in unflatten(row, like).items()}


def _check_amount(defense: Defense) -> None:
    """Require an amount that needs no examples."""
    if None in _amounts(defense):
        raise ValueError(
            "Parameter `defense` should know its amount without examples: a `scale`, a `ratio` or a"
            f" `step`. Found {defense!r}. A server's shape says how noise is spread, not how much;"
            " set the amount, or use `Public(defense, examples)`."
        )


def _amounts(defense: Defense) -> list[float | None]:
    if isinstance(defense, OptimalPruning):
        return [defense.ratio, *([] if defense.noise is None else [defense.noise.scale])]
    return [defense.scale if isinstance(defense, OptimalNoise) else 0.0]
