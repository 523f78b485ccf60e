"""Models and losses by name, in the sizes of the data."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradveil._checks import Task, WrongValue, check_choice, check_labels, check_seed, task_of
from gradveil._imports import AllowImports, imported, is_of_a_user
from gradveil.catalog import MODELS, Spec
from gradveil.messages import LossFunction, check_loss, described_outputs, gradient_of, outputs_of

from ._networks import next_token_loss


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

    By name, "bce", "cross-entropy", "mse" or "next-token", or `"package.module:function"`, as for
    `build_model`. Cross-entropy if `None`, where targets are labels; numbers do not tell which is
    meant.

    >>> import torch
    >>> float(build_loss("mse")(torch.ones(2, 1), torch.zeros(2)))
    1.0
    """
    if name is None:
        if task == "numbers":
            advice = (
                "Use 'mse' (regression), 'bce' (several yes-or-no labels), or"
                " 'package.module:function'; or save classes as integers."
            )
            raise WrongValue("loss", "be given where targets are numbers", "none", advice)
        return functional.cross_entropy if task == "classification" else class_scores_loss
    if isinstance(name, str) and ":" in name:
        own: LossFunction = imported(
            name,
            "loss",
            allow_imports,
            lambda found: not isinstance(found, type) and is_of_a_user(found),
            "a Python function of yours",
        )
        return own
    check_choice(name, "loss", _LOSSES, ", or 'package.module:function' for your own")
    return _LOSSES[name]


def _like(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs in the shape of the targets, where only dimensions of size 1 differ."""
    same = [n for n in outputs.shape if n > 1] == [n for n in targets.shape if n > 1]
    return outputs.reshape(targets.shape) if same else outputs


def build_model(
    name_or_spec: str, seed: int = 0, *, allow_imports: AllowImports = False, **options: Any
) -> nn.Module:
    """Build a model on the CPU, in eval mode, its initial weights a function of `seed` alone.

    The global random state of torch is the same before and after. A user's factory should draw its
    weights from it, as torch's layers do.

    Args:
        name_or_spec: One of `gradveil list models`, with options if need be (`conv-net(width=16)`),
            or `"package.module:factory"`: a subclass of `nn.Module`, or a Python function that
            returns one.
        seed: Seed of the initial weights.
        allow_imports: Whether import paths are allowed, as for `build_defense`.
        options: Plain values; they go before those in the text.

    >>> import torch
    >>> model = build_model("mlp(sizes=[4, 8, 3])", seed=1)
    >>> same = build_model("gradveil.models:MLP", seed=1, allow_imports=True, sizes=[4, 8, 3])
    >>> torch.equal(model.layers[1].weight, same.layers[1].weight)
    True
    """
    check_seed(seed)
    spec = Spec.parse(name_or_spec, "model").with_(**options)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # CPU only; torch.manual_seed seeds GPUs too
        model: nn.Module = spec.build("model", allow_imports=allow_imports)
    if any(weight.is_meta for weight in model.parameters()):
        expected = "have numbers as weights"
        raise WrongValue(f"The model `{spec.name}`", expected, "weights on the device meta")
    return model.eval()


def default_model(shape: Sequence[int]) -> str:
    """The paper's model for images of its sizes, a small perceptron for everything else."""
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
    width that is left open is 16, for quick runs. Without a text it is the `default_model`.
    """
    text = default_model(shape) if text is None else text
    spec = Spec.parse(text, "model")
    known = (
        set(inspect.signature(MODELS[spec.name].build).parameters) if spec.name in MODELS else ()
    )
    fitting: dict[str, Any] = {
        "num_classes": num_classes,
        "sizes": [torch.Size(shape).numel(), 32, num_classes],
    }
    if spec.name != "patch-transformer":
        fitting["width"] = 16
    if len(shape) == 3:
        fitting |= {"num_channels": shape[0], "image": shape[-1]}
    options = {n: v for n, v in fitting.items() if n in known and n not in spec.arguments}
    model = build_model(text, seed=seed, allow_imports=allow_imports, **options)
    if "num_channels" in known and len(shape) != 3:
        found = f"`{spec.name}`, which reads images (channels, height, width)"
        advice = f"Use `{default_model(shape)}`, or a model of your own."
        raise WrongValue("model", f"accept inputs of shape {tuple(shape)}", found, advice)
    return model


def count_outputs(model: nn.Module, loss_fn: LossFunction, inputs: Tensor, targets: Tensor) -> int:
    """How many outputs a target has; an error if model, loss and targets do not fit.

    For class labels, one or several for each example, it is the number of classes that the model
    knows; for numbers, how many an example has. The inputs are those of the first targets.
    """
    few, task = targets[: len(inputs)], task_of(targets)
    message = gradient_of(inputs)(model, loss_fn, few)
    outputs = outputs_of(message, inputs)
    if not isinstance(outputs, Tensor):
        advice = "Name the one to use: `output='logits'` (`--output logits`), or its number."
        raise WrongValue("model", "return one tensor", described_outputs(outputs), advice)
    rows = outputs.shape[:1] == inputs.shape[:1]
    if not rows or (task == "classification" and outputs.dim() != 2):
        scores = " of class scores" if task == "classification" else ""
        found = f"{tuple(outputs.shape)} for inputs of shape {tuple(inputs.shape)}"
        raise WrongValue("model", f"return one row{scores} for each example", found)
    if task == "classification":
        classes = int(outputs.shape[1])
        check_labels(targets, "targets", classes, "the model has {} outputs")
        return classes
    check_loss(message, outputs)
    if task == "numbers":
        return max(1, targets.shape[1:].numel())
    return max(1, outputs.numel() // few.numel())
