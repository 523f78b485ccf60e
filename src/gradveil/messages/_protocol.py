"""What a message is, what may be asked of it, and what is made around one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from gradveil._checks import WrongValue, check_callable, check_inputs
from gradveil._tensors import Tensors

from ._functional import FunctionalLoss, apart, unwritten


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


EXAMPLE = "Use for example `GradientMessage(model, loss_fn, targets)`."


def check_message(message: object) -> None:
    """Require something that maps inputs to values."""
    check_callable(message, "message", EXAMPLE)


AnyMessage = TypeVar("AnyMessage", bound=Message)


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
    """A message of a model in float64."""
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
    with unwritten(loss.model), apart(alone.loss.model):  # type: ignore[attr-defined]
        yield alone


def values_of(message: Message, inputs: Tensor) -> Tensors:
    """The message's values where no derivative is wanted, by its own shortcut if it has one."""
    shortcut = getattr(message, "values", message)
    values: Tensors = shortcut(inputs)
    return values


def separates(message: Message, inputs: Tensor) -> bool:
    """Whether examples enter the message as a sum, g(x) = Σ_b g_b(x_b), and it can be taken apart.

    A message that can be has three methods. `separates(inputs)` says whether it is. Its examples
    then meet only in the loss: `output_gradient(inputs)` is δ = ∇_outputs L, one row for each
    example, and `example_gradient(example, δ_b)` is g_b, the model's vector-Jacobian product.
    """
    asked = getattr(message, "separates", None)
    return asked is not None and bool(asked(inputs))


def check_separates(message: Message, inputs: Tensor, where: str, advice: str) -> None:
    """Require a message whose examples add up."""
    if not separates(message, inputs):
        raise WrongValue(
            "message",
            f"be a sum over examples {where}",
            f"a {type(message).__name__} whose examples interact (BatchNorm in training mode,"
            " dropout, local update steps, or a loss that compares examples)",
            advice,
        )


class Wrapper:
    """What stands around a message, whose parameters, targets and loss it has."""

    message: Any
    passed_on: tuple[str, ...] = ("parameters", "targets", "loss")

    def __getattr__(self, name: str) -> Any:
        """What is not its own is that of the message."""
        if name not in self.passed_on:
            raise AttributeError(f"{type(self).__name__} has no attribute `{name}`.")
        return getattr(self.message, name)


def _same(thing: Any) -> Any:
    return thing


class MappedMessage(Wrapper):
    """after(g(before(x))) for a message g; without a function, that side stays as it is.

    Args:
        message: Anything that maps inputs to values.
        before: From the private inputs to those that the message sees.
        after: From the message's values to what is looked at.

    >>> doubled = MappedMessage(lambda x: {"w": x.sum(0)}, before=lambda x: 2 * x)
    >>> doubled(torch.tensor([[1.0, 2.0]]))["w"]
    tensor([2., 4.])
    """

    def __init__(
        self,
        message: Message,
        before: Callable[[Tensor], Tensor] = _same,
        after: Callable[[Tensors], Tensors] = _same,
    ) -> None:
        check_message(message)
        self.message, self.before, self.after = message, before, after

    def __call__(self, inputs: Tensor) -> Tensors:
        """The changed values; differentiable with respect to the inputs."""
        return self.after(self.message(self.before(inputs)))

    def values(self, inputs: Tensor) -> Tensors:
        """The same numbers for a client that only sends them."""
        check_inputs(inputs)
        with torch.no_grad():
            return self.after(values_of(self.message, self.before(inputs)))


def size_in_bytes(values: Tensors) -> int:
    """Bytes of the values, tensor by tensor: dense, or as index and value where that is less."""
    total = 0
    for value in values.values():
        each = value.element_size()
        sparse = int(value.count_nonzero()) * (each + 4)  # an index has four bytes
        total += min(value.numel() * each, sparse)
    return total
