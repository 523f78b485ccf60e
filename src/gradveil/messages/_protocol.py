"""The protocols of messages and of messages that are sums over examples."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from gradveil._typing import Tensors

from ._functional import FunctionalLoss, apart


@runtime_checkable
class Message(Protocol):
    """A differentiable map from a client's private inputs to what it would send.

    >>> import torch
    >>> from gradveil import GradientNoise
    >>> message = lambda inputs: {"mean": inputs.mean(0)}
    >>> sorted(GradientNoise(scale=0.1)(message, torch.ones(4, 3)))
    ['mean']
    """

    def __call__(self, inputs: Tensor) -> Tensors:
        """The values g(x), by parameter name."""
        ...


AnyMessage = TypeVar("AnyMessage", bound=Message)


@runtime_checkable
class SeparableMessage(Message, Protocol):
    """A message that is a sum over examples: g(x) = Σ_b g_b(x_b).

    Its examples meet only in the loss, so g_b is the model's vector-Jacobian product of example b
    with its own part δ_b of the loss's gradient with respect to the outputs.
    """

    def separates(self, inputs: Tensor) -> bool:
        """Whether examples enter this message as a sum."""
        ...

    def output_gradient(self, inputs: Tensor) -> Tensor:
        """δ = ∇_outputs L of the whole batch, one row for each example."""
        ...

    def example_gradient(self, example: Tensor, output_gradient: Tensor) -> Tensors:
        """g_b: the part of the message that comes from one example."""
        ...


@runtime_checkable
class MovableMessage(Message, Protocol):
    """A message that can be made for other examples than its own: it has targets and a model."""

    targets: Any

    def of(self, targets: Any) -> "MovableMessage":
        """The message of other examples, with these targets."""
        ...


def takes_tokens(message: object) -> bool:
    """Whether the inputs of a message are integers: rows of tables that its model looks up."""
    return bool(getattr(message, "takes_tokens", False))


def movable(message: Message) -> MovableMessage:
    """The message as one that can be made for other examples; an error where it cannot."""
    if not isinstance(message, MovableMessage):
        raise TypeError(
            "Parameter `message` should have `targets` and a method `of(targets)`, which gives the"
            f" same message for other examples. Found {type(message).__name__} without them. Use"
            " GradientMessage or LocalUpdateMessage, or add them; or plan from the private batch."
        )
    return message


def in_double(message: Any) -> Any:
    """A message of a model in float64, its model being a copy as it is now."""
    targets = message.targets
    floating = isinstance(targets, Tensor) and targets.is_floating_point()
    wide = message.of(targets.double() if floating else targets)
    wide.loss = message.loss.double()
    return wide


@contextmanager
def secluded(message: AnyMessage) -> Iterator[AnyMessage]:
    """The message, its model holding copies for now: nothing is written into the user's.

    For private data whose traces in the model would say more than is promised.
    """
    loss = getattr(message, "loss", None)
    if not isinstance(loss, FunctionalLoss):
        yield message
        return
    alone = copy(message)
    alone.loss = loss.secluded(loss.seed)  # type: ignore[attr-defined]
    with apart(alone.loss.model):  # type: ignore[attr-defined]
        yield alone


def values_of(message: Message, inputs: Tensor) -> Tensors:
    """The message's values where no derivative is wanted, by its own shortcut if it has one."""
    shortcut = getattr(message, "values", message)
    values: Tensors = shortcut(inputs)
    return values


def separates(message: Message, inputs: Tensor) -> bool:
    """Whether examples enter the message as a sum, and it can be taken apart."""
    return isinstance(message, SeparableMessage) and message.separates(inputs)


def size_in_bytes(values: Tensors) -> int:
    """Bytes of the values, tensor by tensor: dense, or as index and value where that is less."""
    total = 0
    for value in values.values():
        each = value.element_size()
        sparse = int(value.count_nonzero()) * (each + 4)  # an index has four bytes
        total += min(value.numel() * each, sparse)
    return total
