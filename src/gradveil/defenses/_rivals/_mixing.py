"""Messages of mixed examples, whose loss is the mean over the labels of all that were mixed."""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from gradveil.messages import LossFunction, MappedMessage, Message, movable


def mixed_message(
    message: Message, weights: Sequence[float], mask: Callable[[Tensor], Tensor] | None = None
) -> MappedMessage:
    """The message of Σ_j w_j x_{b+j} with the loss Σ_j w_j L(·, y_{b+j}), b + j around the batch.

    Args:
        message: With targets, one for each example, and a loss of outputs and targets.
        weights: w, that of the example itself first.
        mask: What is done to the mixed inputs before the model gets them.
    """
    own = movable(message)
    if not isinstance(own.targets, Tensor) or own.targets.dim() == 0 or not hasattr(own, "loss"):
        raise TypeError(
            "Parameter `message` should have a loss, and a tensor with one target for each example,"
            f" to be mixed. Found {type(message).__name__} with targets of type"
            f" {type(own.targets).__name__}. Use GradientMessage or LocalUpdateMessage."
        )
    mixed: Any = own.of(_neighbours(own.targets, len(weights), 1))
    mixed.loss = copy(mixed.loss)
    mixed.loss.loss_fn = _mean_loss(mixed.loss.loss_fn, weights)

    def before(inputs: Tensor) -> Tensor:
        rows = _neighbours(inputs, len(weights), 0)
        made = sum(w * row for w, row in zip(weights, rows, strict=True))
        assert isinstance(made, Tensor)
        return made if mask is None else mask(made)

    return MappedMessage(mixed, before=before)


def _neighbours(rows: Tensor, count: int, axis: int) -> Tensor:
    """The examples themselves, the next ones, and so on, stacked along an axis."""
    return torch.stack([rows.roll(-j, 0) for j in range(count)], axis)


def _mean_loss(loss_fn: LossFunction, weights: Sequence[float]) -> LossFunction:
    def loss(outputs: Any, targets: Tensor) -> Tensor:
        parts = [w * loss_fn(outputs, targets[:, j]) for j, w in enumerate(weights)]
        return torch.stack(parts).sum()

    return loss
