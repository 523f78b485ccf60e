"""The base of defenses that plan from elsewhere, and keep the plan for some calls."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import check_count, check_kind
from gradveil._random import seed_from
from gradveil._typing import Tensors
from gradveil.messages import Message, movable
from gradveil.sensitivity import Moments

from .._base import Defense
from .._micro_batches import Observer
from .._planning import Wrapper


class KeptPlan(Wrapper):
    """Plans from moments that are made every `refresh_every` calls, never from the private batch.

    They are made anew, too, when the model's parameters have other names or shapes, or when there
    are more or fewer private examples. Probes come from a generator of their own, so that what the
    moments draw does not shift the noise.
    """

    def __init__(self, defense: Defense, refresh_every: int) -> None:
        check_kind(defense, "defense", Defense, "Use for example `OptimalNoise(scale=0.1)`.")
        check_count(refresh_every, "refresh_every")
        defense.check_plans(f"inside of {type(self).__name__}")
        self.defense, self.refresh_every = defense, refresh_every
        self.reset()

    @abstractmethod
    def made_moments(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Moments:
        """The moments at the current model; of the inputs only their shape may be read."""

    def reset(self) -> None:
        """Forget the plan, as for a new model."""
        self._step = 0
        self._key: list[Any] = []
        self._moments: Moments | None = None
        self._given = False

    def follow(self, other: "KeptPlan") -> None:
        """Take over the moments that another one keeps, as the first ones of one's own.

        So several defenses, or the clients of several trainings, plan from moments that were
        measured once at the same model. Both should plan from the same place.
        """
        check_kind(other, "other", type(self), f"Use another {type(self).__name__}.")
        self.reset()
        self._moments, self._key = other._moments, list(other._key)
        self._given = self._moments is not None

    def public_moments(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> Moments:
        """The moments that are kept, or new ones where they are due."""
        key = _key(message, inputs)
        due = self._step % self.refresh_every == 0 and not self._given
        if self._moments is None or key != self._key or due:
            own = torch.Generator(generator.device).manual_seed(seed_from(generator))
            self._moments, self._key = self.made_moments(message, inputs, own), key
        self._step, self._given = self._step + 1, False
        return _moved(self._moments, inputs)

    def observer(self) -> Observer:
        """What puts the micro-batches of one step together: their number decides on the plan."""
        return CountingObserver(self)

    @property
    def plan_is_private(self) -> bool:
        """Not unless a subclass observes or responds in a way of its own."""
        return self.steps_unlike(Defense)

    @property
    def needs_sensitivities(self) -> bool:
        """As for the wrapped defense."""
        return self.defense.needs_sensitivities

    @property
    def needs_curvature(self) -> bool:
        """As for the wrapped defense."""
        return self.defense.needs_curvature

    def state_dict(self) -> dict[str, Any]:
        """The number of calls and the moments that are kept; nothing before the first call."""
        if self._moments is None:
            return {}
        kept = {name: getattr(self._moments, name) for name in FIELDS}
        tensors = {n: dict(v) if v is not None else None for n, v in kept.items()}
        numbers = {"input_size": self._moments.input_size, "hidden": self._moments.hidden}
        return {"step": self._step, "key": list(self._key), **tensors, **numbers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        expected = {"step", "key", *FIELDS, "input_size", "hidden"}
        check_kind(state, "state", dict, "Use what `state_dict` returned.")
        if state and not expected <= state.keys():
            raise ValueError(
                f"Parameter `state` should have the keys {sorted(expected)}, or none. Found"
                f" {sorted(state)}. Use what `state_dict` returned."
            )
        self.reset()
        if state:
            self._step, self._key = int(state["step"]), list(state["key"])
            self._moments = _restored(state)


FIELDS = (
    "squared_values",
    "squared_sensitivities",
    "second_squares",
    "squared_example_values",
)


class CountingObserver(Observer):
    """Takes the examples of all micro-batches together for the size of the private batch."""

    def __init__(self, defense: Defense) -> None:
        super().__init__(defense)
        self._examples = 0

    def add(
        self,
        message: Message,
        inputs: Tensor,
        generator: torch.Generator,
        past: float = 1.0,
        fresh: float = 1.0,
    ) -> None:
        """Multiply what there is by `past`, and add the micro-batch `fresh` times."""
        super().add(message, inputs, generator, past, fresh)
        self._examples += len(inputs)
        whole = inputs.new_empty(()).expand(self._examples, *inputs.shape[1:])
        self._last = message, whole, generator


def _key(message: Message, inputs: Tensor) -> list[Any]:
    """Names and shapes of the parameters, and how many examples there are."""
    parameters: Tensors = getattr(movable(message), "parameters", {})
    return [len(inputs), *(part for n, p in parameters.items() for part in (n, *p.shape))]


def _moved(moments: Moments, inputs: Tensor) -> Moments:
    """On the device of the inputs."""
    if all(t.device == inputs.device for t in moments.squared_values.values()):
        return moments
    state = {name: _to(getattr(moments, name), inputs) for name in FIELDS}
    return _restored({**state, "input_size": moments.input_size, "hidden": moments.hidden})


def _to(tensors: Tensors | None, inputs: Tensor) -> Tensors | None:
    return None if tensors is None else {n: t.to(inputs.device) for n, t in tensors.items()}


def _restored(state: dict[str, Any]) -> Moments:
    return Moments(
        squared_values=state["squared_values"],
        squared_sensitivities=state["squared_sensitivities"],
        second_squares=state["second_squares"],
        squared_example_values=state["squared_example_values"],
        input_size=int(state["input_size"]),
        hidden=int(state["hidden"]),
    )
