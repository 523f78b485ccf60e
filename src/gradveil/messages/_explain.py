"""Why a message cannot be computed: the model, the loss or the targets, named in one line.

A user's model fails deep inside of torch, in whatever words that operation has. When something
fails, the message is evaluated once more, plainly and step by step, and the first step that fails
is named. Where nothing fails this costs nothing.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import (
    NonFiniteError,
    WrongValue,
    all_finite,
    check_finite,
    check_inputs,
    check_values,
    first_line,
    is_ours,
    is_out_of_memory,
)

from ._functional import FunctionalLoss, check_match, described_outputs
from ._protocol import EXAMPLE, check_message, secluded, takes_tokens


class ModelError(WrongValue):
    """A model, a loss or targets that do not work with these inputs.

    >>> from gradveil import GradientMessage
    >>> model, loss_fn = torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy
    >>> GradientMessage(model, loss_fn, torch.tensor([1]))(torch.ones(1, 5))
    Traceback (most recent call last):
    gradveil.messages._explain.ModelError: Parameter `model` should accept inputs of shape (1, 5)...
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
