"""What a message is, what may be asked of it, what is made around one, and why one fails.

A user's model fails deep inside of torch, in whatever words that operation has. When something
fails, the message is evaluated once more, plainly and step by step, and the first step that fails
is named (`explained`). Where nothing fails this costs nothing.
"""

import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from gradveil._checks import (
    NonFiniteError,
    WrongValue,
    all_finite,
    check_callable,
    check_finite,
    check_inputs,
    check_values,
    first_line,
    is_ours,
    is_out_of_memory,
)
from gradveil._tensors import Tensors

from ._functional import FunctionalLoss, apart, check_match, described_outputs, unwritten


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
    """The message, model and loss holding copies for now: nothing is written into the user's.

    For private data whose traces in the model would say more than is promised.
    """
    loss = getattr(message, "loss", None)
    if not isinstance(loss, FunctionalLoss):
        yield message
        return
    alone = copy(message)
    hidden = loss.secluded(loss.seed)
    alone.loss = hidden  # type: ignore[attr-defined]
    with unwritten(loss.model), apart(hidden.model, hidden.loss_fn):
        yield alone


def values_of(message: Message, inputs: Tensor) -> Tensors:
    """The message's values where no derivative is wanted, by its own shortcut if it has one."""
    values: Tensors = getattr(message, "values", message)(inputs)
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
        found = (
            f"a {type(message).__name__} whose examples interact (BatchNorm in training mode,"
            " dropout, local update steps, or a loss that compares examples)"
        )
        raise WrongValue("message", f"be a sum over examples {where}", found, advice)


class Wrapper:
    """What stands around a message, whose parameters, targets and loss it has."""

    message: Any
    passed_on: tuple[str, ...] = ("parameters", "targets", "loss")

    def __getattr__(self, name: str) -> Any:
        """What is not its own is that of the message."""
        if name not in self.passed_on:
            raise AttributeError(f"{type(self).__name__} has no attribute `{name}`.")
        return getattr(self.message, name)


class MappedMessage(Wrapper):
    """after(g(before(x))) for a message g; without a function, that side stays as it is.

    Args:
        message: Anything that maps inputs to values.
        before: From the private inputs to those that the message sees.
        after: From the message's values to what is looked at.
    """

    def __init__(
        self,
        message: Message,
        before: Callable[[Tensor], Tensor] = lambda inputs: inputs,
        after: Callable[[Tensors], Tensors] = lambda values: values,
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


class ModelError(WrongValue):
    """A model, a loss or targets that do not work with these inputs.

    >>> from gradveil import GradientMessage
    >>> model, loss_fn = torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy
    >>> GradientMessage(model, loss_fn, torch.tensor([1]))(torch.ones(1, 5))
    Traceback (most recent call last):
    gradveil.messages._protocol.ModelError: Parameter `model` should accept inputs of shape ...
    """


@contextmanager
def explained(
    message: Any,
    inputs: Any,
    run: Callable[[Callable[[], None]], object] = lambda look: look(),
) -> Iterator[None]:
    """Turn what torch or the user's code raises inside into an error that names its cause.

    Args:
        message: What is evaluated inside.
        inputs: Of the message.
        run: Calls what looks for the cause, which runs the user's code once more.
    """
    try:
        yield
    except (ModelError, NonFiniteError):
        raise
    except (Exception, SystemExit) as error:  # a model may even leave
        if is_out_of_memory(error):
            raise
        run(partial(_raise_cause, message, inputs))
        if isinstance(error, (ValueError, TypeError)) and is_ours(error):
            raise  # the message works, and something else was wrong
        model = getattr(getattr(message, "loss", None), "model", None)
        raise ModelError(
            "message" if model is None else "model",
            "be made of operations that torch can differentiate with respect to inputs and weights"
            " together",
            f"`{first_line(error)}`",
            "Replace that operation (of activation checkpointing: switch checkpointing off; an"
            " autograd function needs `setup_context`), or use a defense that needs no"
            " sensitivities.",
        ) from error


def check_finite_message(message: Any, inputs: Any, values: Any) -> None:
    """Require finite values; an error names the loss, the model or the weights that broke them."""
    try:
        check_finite(values, "message(inputs)")
    except NonFiniteError:
        _raise_cause(message, inputs)
        raise


def _raise_cause(message: Any, inputs: Any) -> None:
    """Evaluate a message plainly; an error names the first step that fails."""
    check_message(message)
    tokens = takes_tokens(message)
    check_inputs(inputs, tokens=tokens)
    if isinstance(getattr(message, "loss", None), FunctionalLoss):
        check_match(inputs, message.targets, tokens=tokens)
        with secluded(message) as alone:  # its code may write into the model
            outputs = outputs_of(alone, inputs)
        _evaluate_loss(message, outputs)
        return
    with _blamed("message", f"accept inputs of shape {tuple(inputs.shape)}", EXAMPLE):
        values = message(inputs.detach())
    check_values(values, "message(inputs)")
    check_finite(values, "message(inputs)")


def outputs_of(message: Any, inputs: Tensor) -> Any:
    """What the model of a message returns; an error names what is wrong with it."""
    parameters = message.loss.parameters
    check_finite(parameters, "the model's weights")
    kinds = {(p.dtype, p.device) for p in parameters.values()}
    advice = "Check that model and data belong together."
    if kinds != {(inputs.dtype, inputs.device)}:
        dtypes_and_devices = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        advice = f"Its weights are {dtypes_and_devices}: bring both to one dtype and device."
    expected = f"accept inputs of shape {tuple(inputs.shape)}, {inputs.dtype} on {inputs.device}"
    with _blamed("model", expected, advice), torch.no_grad():
        outputs = message.loss.outputs(parameters, inputs)
    if isinstance(outputs, Tensor) and not all_finite(outputs):
        found = f"NaN or infinity for finite inputs of shape {tuple(inputs.shape)}"
        advice = "Check its weights and buffers."
        raise NonFiniteError("model", "return finite outputs", found, advice)
    return outputs


def check_loss(message: Any, outputs: Any) -> None:
    """Require a loss that takes these outputs and the message's targets.

    That torch would compare each output with each target (by broadcasting) is an error, too.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Using a target size", category=UserWarning)
        _evaluate_loss(message, outputs)


@contextmanager
def _blamed(argument: str, expected: str, advice: str) -> Iterator[None]:
    """Turn what the user's code raises inside into an error that blames an argument."""
    try:
        yield
    except (Exception, SystemExit) as error:  # a model may even leave
        if is_out_of_memory(error) or (isinstance(error, ValueError) and is_ours(error)):
            raise
        found = f"that it fails with `{first_line(error)}`"
        for frame in traceback.extract_tb(error.__traceback__):
            if "_higher_order_ops" in frame.filename:  # torch compiles these, and may fail at it
                found, advice = f"{found} in `torch.{frame.name}`", "Replace that operation."
                break
        raise ModelError(argument, expected, found, advice) from error


def _evaluate_loss(message: Any, outputs: Any) -> None:
    targets = f"`targets` ({_seen(message.targets)})"
    expected = f"take the model's outputs ({_seen(outputs)}) and {targets}"
    advice = "Check that outputs, labels and loss belong together."
    with _blamed("loss_fn", expected, advice), torch.no_grad():
        value = message.loss.loss_of_outputs(outputs, message.targets)
    check_finite({"loss": value}, "loss_fn(model(inputs), targets)")


def _seen(thing: Any) -> str:
    """Shape, kind and ends of a tensor; the type of everything else."""
    if not isinstance(thing, Tensor):
        return described_outputs(thing)
    text = f"shape {tuple(thing.shape)}, {thing.dtype} on {thing.device}"
    whole = not (thing.is_complex() or thing.is_floating_point())
    if not whole or thing.numel() == 0 or thing.is_meta or thing.layout is not torch.strided:
        return text
    return f"{text}, from {int(thing.min())} to {int(thing.max())}"
