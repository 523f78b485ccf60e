"""Models that fit the data: the default one, named ones in its sizes, and a check."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._batches import check_labels, task_of
from gradveil._imports import AllowImports
from gradveil.catalog import Spec
from gradveil.messages import (
    GradientMessage,
    LossFunction,
    check_loss,
    described_outputs,
    gradient_of,
    outputs_of,
)
from gradveil.models._registry import build_model, model_names, model_options

_OF_IMAGES = {"num_channels", "input_shape", "image"}
"""Options that only models of images have."""


def default_model(shape: Sequence[int]) -> str:
    """The paper's model for images of its sizes, a small perceptron for everything else.

    Args:
        shape: Of one example.

    >>> default_model((1, 28, 28)), default_model((3, 32, 32)), default_model((6,))
    ('simple-conv-net', 'conv-net', 'mlp')
    """
    if len(shape) != 3:
        return "mlp"
    return {(28, 28): "simple-conv-net", (32, 32): "conv-net"}.get((shape[1], shape[2]), "mlp")


def build_fitting_model(
    text: str | None,
    shape: Sequence[int],
    num_classes: int,
    seed: int = 0,
    *,
    allow_imports: AllowImports = False,
) -> nn.Module:
    """A model by name in the sizes of the data, or the user's own factory as it is.

    Options that the text gives, as in `conv-net(width=16)`, go before those that fit the data. A
    width that is left open is 16, for quick runs.

    Args:
        text: As `build_model` reads it; `None` for the `default_model`.
        shape: Of one example.
        num_classes: How many classes the data has.
        seed: Of the initial weights.
        allow_imports: That of `build_model`.

    >>> build_fitting_model("mlp", (6,), 3).layers[-1].out_features
    3
    """
    text = default_model(shape) if text is None else text
    spec = Spec.parse(text, "model")
    known = model_options(spec.name) if spec.name in model_names() else ()
    options = _options(spec, known, shape, num_classes)
    model = build_model(text, seed=seed, allow_imports=allow_imports, **options)
    _check_kind(spec.name, known, shape)
    return model


def count_classes(model: nn.Module, loss_fn: LossFunction, inputs: Tensor, targets: Tensor) -> int:
    """How many classes the model knows; an error if it does not fit the inputs or the labels.

    Args:
        model: Never modified.
        loss_fn: Maps (outputs, targets) to one number.
        inputs: A few examples.
        targets: Labels of all examples, the first of them of `inputs`.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 4, 5])
    >>> count_classes(model, cross_entropy, torch.zeros(2, 3), torch.tensor([0, 1]))
    5
    """
    message = gradient_of(inputs)(model, loss_fn, targets[: len(inputs)])
    outputs = _outputs(message, inputs)
    if outputs.dim() != 2:
        raise ValueError(
            "Parameter `model` should return one row of class scores for each example. Found"
            f" {tuple(outputs.shape)} for inputs of shape {tuple(inputs.shape)}."
        )
    classes = int(outputs.shape[1])
    check_labels(targets, "targets", classes, "the model has {} outputs")
    return classes


def count_outputs(model: nn.Module, loss_fn: LossFunction, inputs: Tensor, targets: Tensor) -> int:
    """How many outputs a target has; an error if model, loss and targets do not fit.

    As `count_classes` for class labels. For several labels of an example it is the number of
    classes, too; for numbers, how many an example has.

    >>> from torch.nn.functional import mse_loss
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 4, 5])
    >>> count_outputs(model, mse_loss, torch.zeros(2, 3), torch.zeros(2, 5))
    5
    """
    if task_of(targets) == "classification":
        return count_classes(model, loss_fn, inputs, targets)
    message = gradient_of(inputs)(model, loss_fn, targets[: len(inputs)])
    outputs = _outputs(message, inputs)
    check_loss(message, outputs)
    if task_of(targets) == "numbers":
        return max(1, targets.shape[1:].numel())
    return max(1, outputs.numel() // targets[: len(inputs)].numel())


def _check_kind(name: str, known: Sequence[str], shape: Sequence[int]) -> None:
    if _OF_IMAGES & set(known) and len(shape) != 3:
        raise ValueError(
            f"Parameter `model` should accept inputs of shape {tuple(shape)}. Found `{name}`, which"
            f" reads images (channels, height, width). Use `{default_model(shape)}`, or a model of"
            " your own."
        )


def _options(
    spec: Spec, known: Sequence[str], shape: Sequence[int], num_classes: int
) -> dict[str, Any]:
    """What fits the data, of the options that the text leaves open."""
    size = torch.Size(shape).numel()
    fitting: dict[str, Any] = {
        "num_classes": num_classes,
        "sizes": [size, 32, num_classes],
        "width": 16,
    }
    if len(shape) == 3:
        fitting |= {"num_channels": shape[0], "input_shape": tuple(shape), "image": shape[-1]}
    open_options = set(known[len(spec.positional) :]) - spec.options.keys()
    if spec.name == "patch-transformer":
        open_options -= {"width"}
    return {key: value for key, value in fitting.items() if key in open_options}


def _outputs(message: GradientMessage, inputs: Tensor) -> Tensor:
    """What the model returns: one tensor with a row for each example."""
    outputs = outputs_of(message, inputs)
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"Parameter `model` should return one tensor. Found {described_outputs(outputs)}. Name"
            " the one to use: `output='logits'` (`--output logits`), or its number."
        )
    if outputs.shape[:1] != inputs.shape[:1]:
        raise ValueError(
            "Parameter `model` should return one row for each example. Found"
            f" {tuple(outputs.shape)} for inputs of shape {tuple(inputs.shape)}."
        )
    return outputs
