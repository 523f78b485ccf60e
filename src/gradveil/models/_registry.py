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
    LossFunction,
    check_loss,
    described_outputs,
    gradient_of,
    outputs_of,
)

from ._networks import MLP, ConvNet, LeNet, ResNet, SimpleConvNet
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


def build_loss(
    name: str | None, task: Task = "classification", *, allow_imports: AllowImports = False
) -> LossFunction:
    """A loss of (outputs, targets), a mean over examples.

    Args:
        name: "bce", "cross-entropy", "mse", "next-token", or `"package.module:function"`.
            Cross-entropy if `None`, where targets are labels; numbers do not tell which loss is
            meant.
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
            f"Parameter `loss` should be one of {', '.join(sorted(_LOSSES))}, or"
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
    factory = _find_factory(spec, allow_imports)
    positional, options = spec.positional, {**spec.options, **options}
    _check_options(spec.name, factory, positional, options)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # CPU only; torch.manual_seed seeds GPUs too
            model = factory(*positional, **options)
    except (Exception, SystemExit) as error:  # a user's factory may raise anything
        if spec.name in _MODELS:
            raise
        raise ValueError(
            "Parameter `name_or_spec` should name a factory that returns a model. Found that"
            f" {spec.name!r} fails with `{first_line(error)}`. Call it in Python to see where."
        ) from error
    if not isinstance(model, nn.Module) or any(weight.is_meta for weight in model.parameters()):
        kind = f"`{type(model).__name__}`{' on the device meta' * isinstance(model, nn.Module)}"
        raise ValueError(
            f"Parameter `name_or_spec` should name a factory that returns a `torch.nn.Module` with"
            f" numbers in it. Found that `{name_or_spec}` returns a {kind}. Return the model."
        )
    return model.eval()


def _find_factory(spec: Spec, allow_imports: AllowImports) -> Callable[..., Any]:
    for value in spec.arguments.values():
        if isinstance(value, Spec) and (spec.name in _MODELS or ":" in spec.name):
            raise ValueError(
                f"Parameter `name_or_spec` should have plain values as options. Found `{value}` in"
                f" `{spec}`. Put words into quotes."
            )
    if spec.name in _MODELS:
        return _MODELS[spec.name]
    if ":" in spec.name:
        factory: Callable[..., Any] = import_object(spec.name, "model", allow_imports, "factory")
        check_factory(factory, spec.name, "model", nn.Module)
        return factory
    raise ValueError(
        f"Parameter `name_or_spec` should be one of {', '.join(model_names())}, or "
        f"'package.module:factory' for your own model. Found {spec.name!r}."
        f"{suggestion(spec.name, _MODELS) or ' Choose one of these.'}"
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
    known = [*inspect.signature(_MODELS[spec.name]).parameters] if spec.name in _MODELS else []
    fitting: dict[str, Any] = {
        "num_classes": num_classes,
        "sizes": [torch.Size(shape).numel(), 32, num_classes],
    }
    if spec.name != "patch-transformer":
        fitting["width"] = 16
    if len(shape) == 3:
        fitting |= {"num_channels": shape[0], "input_shape": tuple(shape), "image": shape[-1]}
    left_open = {*known[len(spec.positional) :]} - spec.options.keys()
    options = {name: value for name, value in fitting.items() if name in left_open}
    model = build_model(text, seed=seed, allow_imports=allow_imports, **options)
    if {"num_channels", "input_shape", "image"} & {*known} and len(shape) != 3:
        raise ValueError(
            f"Parameter `model` should accept inputs of shape {tuple(shape)}. Found `{spec.name}`,"
            f" which reads images (channels, height, width). Use `{default_model(shape)}`, or a"
            " model of your own."
        )
    return model


def count_outputs(model: nn.Module, loss_fn: LossFunction, inputs: Tensor, targets: Tensor) -> int:
    """How many outputs a target has; an error if model, loss and targets do not fit.

    For class labels, one or several for each example, it is the number of classes that the model
    knows; for numbers, how many an example has.

    Args:
        model: Never modified.
        loss_fn: Maps (outputs, targets) to one number.
        inputs: A few examples.
        targets: Those of all examples, the first of them of `inputs`.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 4, 5])
    >>> count_outputs(model, cross_entropy, torch.zeros(2, 3), torch.tensor([0, 1]))
    5
    """
    few, task = targets[: len(inputs)], task_of(targets)
    message = gradient_of(inputs)(model, loss_fn, few)
    outputs = outputs_of(message, inputs)
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"Parameter `model` should return one tensor. Found {described_outputs(outputs)}. Name"
            " the one to use: `output='logits'` (`--output logits`), or its number."
        )
    rows = outputs.shape[:1] == inputs.shape[:1]
    if not rows or (task == "classification" and outputs.dim() != 2):
        scores = " of class scores" if task == "classification" else ""
        raise ValueError(
            f"Parameter `model` should return one row{scores} for each example. Found"
            f" {tuple(outputs.shape)} for inputs of shape {tuple(inputs.shape)}."
        )
    if task == "classification":
        classes = int(outputs.shape[1])
        check_labels(targets, "targets", classes, "the model has {} outputs")
        return classes
    check_loss(message, outputs)
    if task == "numbers":
        return max(1, targets.shape[1:].numel())
    return max(1, outputs.numel() // few.numel())
