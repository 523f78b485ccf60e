"""Models and losses by name, in the sizes of the data."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradveil._batches import Task, check_labels, task_of
from gradveil._checks import check_kind, check_seed, first_line
from gradveil._imports import AllowImports, check_factory, check_function, import_object
from gradveil._suggest import suggestion
from gradveil.catalog import Spec
from gradveil.messages import (
    GradientMessage,
    LossFunction,
    check_loss,
    described_outputs,
    gradient_of,
    outputs_of,
)

from ._conv_nets import ConvNet, LeNet, SimpleConvNet
from ._mlp import MLP
from ._res_net import ResNet
from ._transformers import PatchTransformer, next_token_loss


def class_scores_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of scores (N, C, ...), or (N, ..., C), with labels (N, ...)."""
    last = scores.shape[2:] != labels.shape[1:] and scores.shape[:-1] == labels.shape
    return functional.cross_entropy(scores.movedim(-1, 1) if last else scores, labels)


def squared_error_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error; outputs may have a dimension of size 1 more than targets."""
    return functional.mse_loss(_like(outputs, targets), targets)


def yes_or_no_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of scores (logits) with targets from 0 to 1, one or many for each."""
    return functional.binary_cross_entropy_with_logits(_like(scores, targets), targets)


_LOSSES: dict[str, LossFunction] = {
    "cross-entropy": class_scores_loss,
    "mse": squared_error_loss,
    "bce": yes_or_no_loss,
    "next-token": next_token_loss,
}


def loss_names() -> tuple[str, ...]:
    """The names that `build_loss` knows.

    >>> loss_names()
    ('bce', 'cross-entropy', 'mse', 'next-token')
    """
    return tuple(sorted(_LOSSES))


def build_loss(
    name: str | None, task: Task = "classification", *, allow_imports: AllowImports = False
) -> LossFunction:
    """A loss of (outputs, targets), a mean over examples.

    Args:
        name: One of `loss_names`, or `"package.module:function"`. Cross-entropy if `None`, where
            targets are labels; numbers do not tell which loss is meant.
        task: What the targets are.
        allow_imports: As for `build_model`.

    >>> import torch
    >>> float(build_loss("mse")(torch.ones(2, 1), torch.zeros(2)))
    1.0
    """
    if name is None:
        if task == "numbers":
            raise ValueError(
                "Parameter `loss` should be given where targets are numbers. Found none. Use 'mse'"
                " (regression), 'bce' (several yes-or-no labels), or 'package.module:function'; or"
                " save classes as integers."
            )
        return functional.cross_entropy if task == "classification" else class_scores_loss
    check_kind(name, "loss", str, "Use for example 'mse'.")
    if ":" in name:
        function: LossFunction = import_object(name, "loss", allow_imports, "function")
        check_function(function, name, "loss")
        return function
    if name not in _LOSSES:
        raise ValueError(
            f"Parameter `loss` should be one of {', '.join(loss_names())}, or"
            f" 'package.module:function' for your own. Found {name!r}."
            f"{suggestion(name, _LOSSES) or ' Choose one of these.'}"
        )
    return _LOSSES[name]


def _like(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs in the shape of the targets, where only dimensions of size 1 differ."""
    same = [n for n in outputs.shape if n > 1] == [n for n in targets.shape if n > 1]
    return outputs.reshape(targets.shape) if same else outputs


_MODELS: dict[str, Callable[..., Any]] = {
    "conv-net": ConvNet,
    "le-net": LeNet,
    "mlp": MLP,
    "patch-transformer": PatchTransformer,
    "res-net": ResNet,
    "simple-conv-net": SimpleConvNet,
}


def model_names() -> tuple[str, ...]:
    """The names that `build_model` knows.

    >>> model_names()
    ('conv-net', 'le-net', 'mlp', 'patch-transformer', 'res-net', 'simple-conv-net')
    """
    return tuple(sorted(_MODELS))


def build_model(
    name_or_spec: str, seed: int = 0, *, allow_imports: AllowImports = False, **options: Any
) -> nn.Module:
    """Build a model on the CPU, in eval mode, its initial weights a function of `seed` alone.

    The global random state of torch is the same before and after. A user's factory should draw its
    weights from it (as torch's layers do); randomness from elsewhere is not governed by `seed`.

    Args:
        name_or_spec: One of `model_names`, with options if need be (`conv-net(width=16)`),
            or `"package.module:factory"`: a subclass of `nn.Module`, or a Python function that
            returns one.
        seed: Seed of the initial weights.
        allow_imports: Whether import paths are allowed, whose code is then run: True for text of
            the local user's own, or the paths that are allowed.
        options: Passed on to the model's class or factory; they go before those in the text.

    >>> import torch
    >>> model = build_model("mlp(sizes=[4, 8, 3])", seed=1)
    >>> same = build_model("gradveil.models:MLP", seed=1, allow_imports=True, sizes=[4, 8, 3])
    >>> torch.equal(model.layers[1].weight, same.layers[1].weight)
    True
    """
    check_kind(name_or_spec, "name_or_spec", str, "Use for example 'mlp'.")
    check_seed(seed)
    spec = Spec.parse(name_or_spec, "model")
    factory = _find_factory(spec.name, allow_imports)
    _check_plain(spec)
    positional, options = spec.positional, {**spec.options, **options}
    _check_options(spec.name, factory, positional, options)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # CPU only; torch.manual_seed seeds GPUs too
        model = _built(spec.name, factory, positional, options)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"Parameter `name_or_spec` should name a factory that returns a `torch.nn.Module`. "
            f"Found that `{name_or_spec}` returns a `{type(model).__name__}`. Return the model."
        )
    if any(weight.is_meta for weight in model.parameters()):
        raise ValueError(
            f"Parameter `name_or_spec` should name a factory of a model with numbers in it. Found "
            f"that `{name_or_spec}` returns one on the device meta. Leave the device out."
        )
    return model.eval()


def model_options(name: str) -> tuple[str, ...]:
    """The options of a registered model.

    >>> model_options("mlp")
    ('sizes', 'activation')
    """
    return tuple(inspect.signature(_MODELS[name]).parameters)


def _built(
    name: str, factory: Callable[..., Any], positional: list[Any], options: dict[str, Any]
) -> Any:
    """What the factory returns; whatever a user's factory raises is one clear error."""
    if ":" not in name:
        return factory(*positional, **options)
    try:
        return factory(*positional, **options)
    except (Exception, SystemExit) as error:
        raise ValueError(
            "Parameter `name_or_spec` should name a factory that returns a model. Found that"
            f" {name!r} fails with `{first_line(error)}`. Call it in Python to see where."
        ) from error


def _find_factory(name: str, allow_imports: AllowImports) -> Callable[..., Any]:
    if name in _MODELS:
        return _MODELS[name]
    if ":" in name:
        factory: Callable[..., Any] = import_object(name, "model", allow_imports, "factory")
        check_factory(factory, name, "model", nn.Module)
        return factory
    raise ValueError(
        f"Parameter `name_or_spec` should be one of {', '.join(model_names())}, or "
        f"'package.module:factory' for your own model. Found {name!r}."
        f"{suggestion(name, _MODELS) or ' Choose one of these.'}"
    )


def _check_plain(spec: Spec) -> None:
    for value in spec.arguments.values():
        if isinstance(value, Spec):
            raise ValueError(
                f"Parameter `name_or_spec` should have plain values as options. Found `{value}` in"
                f" `{spec}`. Put words into quotes."
            )


def _check_options(
    name: str, factory: Callable[..., Any], positional: list[Any], options: dict[str, Any]
) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # built in C, say: calling it will tell
    try:
        signature.bind(*positional, **options)
    except TypeError as error:
        given = f"{options!r}" if not positional else f"{positional!r} and {options!r}"
        raise ValueError(
            f"Parameter `options` should fit `{name}{signature}`. Found {given}: {error}. "
            f"Pass what this signature asks for."
        ) from error


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
