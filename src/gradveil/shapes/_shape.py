"""How noise is spread over the entries of a message, in few numbers, and where that comes from."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradveil._checks import WrongType, WrongValue, check_kind, check_values
from gradveil._tensors import Tensors
from gradveil.messages import Message
from gradveil.sensitivity import Estimator, Moments, estimator_name

Factors = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Shape:
    """Relative noise variances r_i > 0, tensor by tensor; a defense sets the amount.

    r_i stands for √(E‖∇_x g_i‖² / E g_i²) up to one constant for the whole message. That is all
    that optimal noise (Σ ∝ r), pruning (largest r first) and rounding look at.

    Each tensor's r is a product of factors that broadcast to it: one number for all of its
    entries, one for each row and one for each column, or one for each entry. So a shape can be
    much smaller than the message, and a server can send it to its clients.

    With `silent` levels may be 0, where an entry says nothing of the inputs; `PrivateNoise` sends
    no such entry.

    A shape with a `floor` comes from somebody who is not trusted: no standard deviation is below
    `floor` times their root mean square (`FromServer`). A defense's own limits are then left out.

    >>> shape = Shape({"w": (torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 3.0, 5.0]]))})
    >>> shape.levels({"w": torch.zeros(2, 3)})["w"]
    tensor([[ 1.,  3.,  5.],
            [ 2.,  6., 10.]])
    >>> shape.numbers
    5
    """

    factors: Mapping[str, Factors]
    silent: bool = False
    floor: float | None = None
    made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    """Cache of what is derived from this shape, shared by all its users."""

    def __post_init__(self) -> None:
        check_kind(self.factors, "factors", Mapping, "Give tuples of tensors by parameter name.")
        factors = {
            id(factor): (factor, f"factors[{name!r}][{number}]")
            for name, own in self.factors.items()
            for number, factor in enumerate(own)
        }
        for factor, name in factors.values():
            _check_factor(factor, name, self.silent)

    @property
    def spec_words(self) -> str:
        """In specifications, which hold no tensors."""
        return f"shape of {self.numbers} numbers"

    @classmethod
    def isotropic(cls, like: Mapping[str, Tensor]) -> "Shape":
        """The same level everywhere."""
        kinds = {(value.dtype, value.device) for value in like.values()}
        ones = {kind: torch.ones((), dtype=kind[0], device=kind[1]) for kind in kinds}
        return cls({name: (ones[v.dtype, v.device],) for name, v in like.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        return Shape, (self.factors, self.silent, self.floor)

    @property
    def numbers(self) -> int:
        """How many numbers it takes."""
        return sum(factor.numel() for factors in self.factors.values() for factor in factors)

    def levels(self, like: Mapping[str, Tensor]) -> Tensors:
        """r_i in the shape, the type and the place of each parameter; the shape must fit them."""
        self.check(like)
        return {name: _product(self.factors[name], value) for name, value in like.items()}

    def check(self, like: Mapping[str, Tensor]) -> None:
        """Require a factor list for each parameter, and none besides, that broadcasts to it."""
        check_values(like, "like")
        if self.factors.keys() != like.keys():
            raise ValueError(
                f"A shape should have the parameters {sorted(like)[:8]}. Found"
                f" {sorted(self.factors)[:8]}. Plan it for this model."
            )
        for name, value in like.items():
            try:
                for factor in self.factors[name]:
                    factor.expand(value.shape)
            except RuntimeError:
                raise ValueError(
                    f"The factors of `{name}` should broadcast to {tuple(value.shape)}. Found"
                    f" {[tuple(f.shape) for f in self.factors[name]]}. Plan it for this model."
                ) from None


def _product(factors: Factors, like: Tensor) -> Tensor:
    """One number stays one, expanded."""
    if not factors:
        return like.new_ones(()).expand(like.shape)
    return prod((f.to(like) for f in factors[1:]), start=factors[0].to(like)).expand(like.shape)


def _check_factor(factor: object, name: str, silent: bool) -> None:
    if not isinstance(factor, Tensor) or not factor.is_floating_point():
        found = factor.dtype if isinstance(factor, Tensor) else type(factor).__name__
        raise WrongType(name, "be a tensor of floating point numbers", str(found))
    if not factor.numel():
        return
    least, most = (float(end) for end in torch.aminmax(factor.detach()))  # NaN if there is one
    if not (least >= 0 if silent else least > 0) or not most < inf:
        found, advice = f"values from {least:g} to {most:g}", "A level of 0 switches the noise off."
        raise WrongValue(name, "be finite and above 0 everywhere", found, advice)


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


class Request(NamedTuple):
    """For what a defense asks a source for a shape."""

    needs: Needs
    like: Mapping[str, Tensor]
    """Tensors of the message's names and sizes, whose values are not read."""
    message: Message
    """What the client would send; its model is read, its targets are not."""
    inputs: Tensor
    """The private batch, whose values are not read."""
    generator: torch.Generator
    """For what is drawn on the way."""


@dataclass(frozen=True, eq=False)
class Given:
    """A shape, and the moments of the examples that it comes from, for amounts that need them.

    >>> from gradveil import Moments
    >>> Given(Shape({"w": (torch.ones(2),)}), Moments({"w": torch.ones(2)}, None, 1)).shape.numbers
    2
    """

    shape: Shape
    moments: Moments

    def to(self, device: torch.device) -> "Given":
        """The same on another device."""
        if all(t.device == device for t in self.moments.like.values()):
            return self
        known = {n: v for n, v in vars(self.moments).items() if isinstance(v, Mapping)}
        moved = {n: {k: t.to(device) for k, t in v.items()} for n, v in known.items()}
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
    def given(self, asked: Request) -> Given:
        """The shape for this message; of the inputs and the targets no value is read."""

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


def check_state(state: object, expected: set[str]) -> None:
    """Require the keys of a state, or an empty one."""
    check_kind(state, "state", dict, "Use what `state_dict` returned.")
    assert isinstance(state, dict)
    if state and state.keys() != expected:
        advice = "Use what `state_dict` returned by the same kind of defense."
        wanted = f"have the keys {sorted(expected)}, or none"
        raise WrongValue("state", wanted, str(sorted(state)), advice)
