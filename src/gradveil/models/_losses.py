"""Losses by name, or by the import path of a user's own function."""

from torch import Tensor
from torch.nn import functional

from gradveil._batches import Task
from gradveil._checks import check_kind
from gradveil._imports import AllowImports, check_function, import_object
from gradveil._suggest import suggestion
from gradveil.messages import LossFunction
from gradveil.models._token_transformer import next_token_loss


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
