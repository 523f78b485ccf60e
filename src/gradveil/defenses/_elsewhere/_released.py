"""A defense that plans from the model and from what has been released before."""

from typing import Any

import torch
from torch import Tensor

from gradveil._checks import check_ratio
from gradveil._tensors import total
from gradveil._typing import Tensors
from gradveil.messages import Message, movable
from gradveil.plans import released_moments
from gradveil.sensitivity import Moments

from .._base import Defense
from ._kept import KeptPlan


class Released(KeptPlan):
    """Plans another defense without any data: from the model, and from its global updates.

    Sensitivities come from made-up examples (`gradveil.plans.model_moments`). The squares g² come
    from the differences of the models that the client receives from call to call, which all have
    seen, where these look like gradients; before the first difference, and where an optimizer like
    Adam has made all of them alike, from the made-up examples. A plan reveals nothing of the
    private batch.

    On a trained model little can be known like this, and the plan is nearly isotropic: never much
    worse, hardly better. Public examples (`Public`) make a better plan.

    Args:
        defense: Any defense that plans and knows its amount: `scale`, `ratio` or `step`.
        refresh_every: Calls from one plan to the next.
        decay: The weight of past updates at each new one, in [0, 1].

    >>> from gradveil import OptimalNoise
    >>> Released(OptimalNoise(scale=0.1))
    Released(OptimalNoise(scale=0.1, ...), refresh_every=10)
    """

    plan_from = "released"

    def __init__(self, defense: Defense, refresh_every: int = 10, decay: float = 0.9) -> None:
        check_ratio(decay, "decay")
        self.decay = decay
        super().__init__(defense, refresh_every)

    @property
    def label(self) -> str:
        """The wrapped defense's, after "released"."""
        return f"released {self.defense.label}"

    def reset(self) -> None:
        """Forget the plan and all updates, as for a new model."""
        super().reset()
        self._last: Tensors = {}
        self._updates: Tensors = {}
        self._count = 0.0

    def public_moments(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> Moments:
        """The moments that are kept, or new ones; the model's last update is taken in first."""
        self.defense.check_amount_is_known()
        self._take_in(getattr(movable(message), "parameters", {}))
        return super().public_moments(message, inputs, generator)

    def made_moments(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Moments:
        """Those of made-up examples and of the updates so far."""
        updates = {n: u.to(inputs.device) for n, u in self._updates.items()} or None
        return released_moments(message, inputs, generator, updates, curvature=self.needs_curvature)

    def _take_in(self, now: Tensors) -> None:
        """Add the difference to the last model to the mean squares, each update counting the same.

        Models of another shape start anew; one that has not moved says nothing.
        """
        last, self._last = self._last, {name: p.detach().clone() for name, p in now.items()}
        if _shapes(last) != _shapes(now):
            self._updates, self._count = {}, 0.0
            return
        moves = {name: (p - last[name].to(p)).square() for name, p in self._last.items()}
        power = float(total(moves.values()))
        if power == 0:
            return
        past = self.decay * self._count
        self._count = past + 1
        unit = sum(m.numel() for m in moves.values()) / power
        self._updates = {
            name: (past * self._updates[name].to(move) + unit * move) / self._count
            if past
            else unit * move
            for name, move in moves.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """The plan that is kept, the last model and the mean squares of its updates."""
        state = super().state_dict()
        if not state:
            return {}
        past = {"last": dict(self._last), "updates": dict(self._updates), "count": self._count}
        return {**state, **past}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        super().load_state_dict(state)
        if state:
            self._last, self._updates = dict(state["last"]), dict(state["updates"])
            self._count = float(state["count"])

    def __repr__(self) -> str:
        return f"Released({self.defense!r}, refresh_every={self.refresh_every})"


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
