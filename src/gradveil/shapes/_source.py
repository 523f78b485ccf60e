"""Where a shape comes from, and how often it is made anew."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

from gradveil._checks import check_count, check_kind
from gradveil._typing import Tensors
from gradveil.messages import Message, movable
from gradveil.sensitivity import OPTIONAL_FIELDS, Estimator, Moments, estimator_name

from ._shape import Shape

TENSORS = ("squared_values", *OPTIONAL_FIELDS)
"""The fields of `Moments` that hold tensors."""


@dataclass(frozen=True)
class Needs:
    """What a defense has to know before it can say what it does to a message."""

    moments: bool = True
    """Numbers at all: not for a defense that does the same to all messages of the same shapes."""
    sensitivities: bool = True
    """E‖∇_x g_i‖² beside E g_i²; if not, none are measured."""
    examples: str | None = None
    """The option that sets the amount by real examples: "utility_budget" or "target_error"."""
    judged: bool = False
    """A second measurement, on all examples: an error is to be guaranteed."""
    estimator: Estimator | str = "auto"
    """How sensitivities are measured."""

    @property
    def key(self) -> str:
        """What is measured, as text that is the same in another process."""
        how = self.estimator if isinstance(self.estimator, str) else estimator_name(self.estimator)
        return f"{how}{' judged' * self.judged}"


@dataclass(frozen=True, eq=False)
class Given:
    """A shape, and the moments of the examples that it comes from, for amounts that need them.

    >>> from gradveil import Moments
    >>> from gradveil.shapes import Shape
    >>> moments = Moments({"w": torch.ones(2)}, {"w": torch.ones(2)}, input_size=1)
    >>> Given(Shape({"w": (torch.ones(2),)}), moments).shape.numbers
    2
    """

    shape: Shape
    moments: Moments

    def to(self, device: torch.device) -> "Given":
        """The same on another device."""
        if all(t.device == device for t in self.moments.like.values()):
            return self
        known = _tensors(self.moments)
        moved = {f: t and {n: v.to(device) for n, v in t.items()} for f, t in known.items()}
        return Given(replace(self.shape), replace(self.moments, **moved))  # type: ignore[arg-type]


class Source(ABC):
    """Gives shapes. Nothing of a private batch but its shape and type may enter them.

    >>> from gradveil.shapes import ModelSource
    >>> isinstance(ModelSource(refresh_every=5), Source), ModelSource.name
    (True, 'model')
    """

    name: str
    """What tables call it."""

    @abstractmethod
    def given(
        self,
        needs: Needs,
        like: Mapping[str, Tensor],
        message: Message,
        inputs: Tensor,
        generator: torch.Generator,
    ) -> Given:
        """The shape for this message; of the inputs and the targets no value is read.

        Args:
            needs: What the defense has to know.
            like: Tensors of the message's names and sizes, whose values are not read.
            message: What the client would send; its model is read, its targets are not.
            inputs: The private batch, whose values are not read.
            generator: For what is drawn on the way.
        """

    def check(self, needs: Needs) -> None:
        """Require a defense that can take a shape from here; all can."""
        return

    def reset(self) -> None:
        """Forget everything, as for a new model; there is nothing."""
        return

    def state_dict(self) -> dict[str, Any]:
        """What is kept from one call to the next: tensors, numbers and text."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        check_state(state, set())

    def __deepcopy__(self, memo: dict[int, Any]) -> "Source":
        """What is kept is never written to, so that copies share it."""
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied


class KeptSource(Source):
    """Makes a shape every `refresh_every` calls, and when what it is for has changed.

    That is said by a key: the names and shapes of the model's parameters, and what else it is made
    for. Kept for one model (`at`), a shape is not used for another one of the same names; the model
    itself is not kept alive.
    """

    any_model = False
    """Whether it is for every model of the same names and shapes, such as that of each round."""

    def __init__(self, refresh_every: int) -> None:
        check_count(refresh_every, "refresh_every")
        self.refresh_every = refresh_every
        self.reset()

    def reset(self) -> None:
        """Forget the shape, as for a new model."""
        self._step = 0
        self._key: list[Any] = []
        self._given: Given | None = None
        self._owner: ReferenceType[nn.Module] | None = None
        self._is_first = False

    def follow(self, other: "KeptSource") -> None:
        """Take over what another one keeps, as the first of one's own.

        So several defenses, or the clients of several trainings, have a shape that was made once at
        the same model. Both should be of the same kind.
        """
        check_kind(other, "other", type(self), f"Use another {type(self).__name__}.")
        self.reset()
        self._given, self._key = other._given, list(other._key)
        self._is_first = self._given is not None

    def kept(
        self,
        message: Message,
        inputs: Tensor,
        setting: list[Any],
        make: Callable[[], Given],
        at: nn.Module | None = None,
    ) -> Given:
        """What is kept, or made anew where that is due.

        Args:
            message: What it is for.
            inputs: Their device is that of the moments.
            setting: Numbers and text that change with what else it is for.
            make: Makes it anew.
            at: The model that it is kept for; `None` for any that has this key.
        """
        parameters: Tensors = getattr(movable(message), "parameters", {})
        key = [*setting, *(part for n, p in parameters.items() for part in (n, *p.shape))]
        of_another = self._owner is not None and self._owner() is not at
        if self._given is None or key != self._key or of_another:
            self._step, self._is_first = 0, False
        if self._step % self.refresh_every == 0 and not self._is_first:
            self._given, self._key = make(), key
        assert self._given is not None
        self._owner = None if at is None or self.any_model else ref(at)
        self._step, self._is_first = self._step + 1, False
        return self._given.to(inputs.device)

    def state_dict(self) -> dict[str, Any]:
        """The number of calls and what is kept; nothing before the first call."""
        if self._given is None:
            return {}
        moments = self._given.moments
        numbers = {"input_size": moments.input_size, "hidden": moments.hidden}
        shape = shape_state(self._given.shape)
        kept = {**_tensors(moments), **numbers}
        return {"step": self._step, "key": list(self._key), "shape": shape, **kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned, at the next model of its key."""
        names = (*TENSORS, "input_size", "hidden")
        check_state(state, {"step", "key", "shape", *names})
        self.reset()
        if state:
            self._step, self._key = int(state["step"]), list(state["key"])
            moments = Moments(**{name: state[name] for name in names})
            self._given = Given(shape_from(state["shape"]), moments)

    def __getstate__(self) -> dict[str, Any]:
        """Elsewhere the model is another one, so that what belongs to a model stays here."""
        if self._owner is None:
            return dict(vars(self))
        other = self.__deepcopy__({})
        other.reset()
        return dict(vars(other))


def check_state(state: object, expected: set[str]) -> None:
    """Require the keys of a state, or an empty one."""
    check_kind(state, "state", dict, "Use what `state_dict` returned.")
    assert isinstance(state, dict)
    if state and state.keys() != expected:
        raise ValueError(
            f"Parameter `state` should have the keys {sorted(expected)}, or none. Found"
            f" {sorted(state)}. Use what `state_dict` returned by the same kind of defense."
        )


def shape_state(shape: Shape) -> dict[str, list[Tensor]]:
    """The factors of a shape, in lists."""
    return {name: list(factors) for name, factors in shape.factors.items()}


def shape_from(state: Mapping[str, list[Tensor]]) -> Shape:
    """The shape of the factors that `shape_state` wrote."""
    return Shape({name: tuple(factors) for name, factors in state.items()})


def _tensors(moments: Moments) -> dict[str, Tensors | None]:
    known = {name: getattr(moments, name) for name in TENSORS}
    return {name: None if tensors is None else dict(tensors) for name, tensors in known.items()}
