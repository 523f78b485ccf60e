"""Synthetic examples for a model: what can be known of a message without any data."""

from typing import Any

import torch
from torch import Tensor

from gradveil._random import normal_like
from gradveil.messages import (
    Message,
    MovableMessage,
    TokenGradient,
    movable,
    outputs_of,
    random_ids,
)

FEW = 2
"""Examples whose outputs show how many classes there are."""


def synthetic(
    message: Message, inputs: Tensor, generator: torch.Generator, size: int | None = None
) -> tuple[MovableMessage, Tensor]:
    """The same message for made-up examples, `size` of them or as many as there are, and those.

    Of the inputs and of the message's targets only shape, type and device are read, no value.
    Inputs are drawn from N(0, 1), ids of tokens evenly from all that there are. Targets that are
    integers are the classes of the model's outputs, each equally often, in a random order;
    floating-point ones are drawn from N(0, 1).

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import GradientMessage
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 4, 2])
    >>> message = GradientMessage(model, cross_entropy, torch.tensor([0, 1]))
    >>> generator = torch.Generator().manual_seed(0)
    >>> other, made_up = synthetic(message, torch.rand(2, 3), generator, size=4)
    >>> made_up.shape
    torch.Size([4, 3])
    """
    own = movable(message)
    like = _of_size(inputs, size or len(inputs))
    if isinstance(message, TokenGradient):
        made = random_ids(message, like, generator)
    else:
        made = normal_like(like, generator)
    return own.of(_targets(own, made, generator)), made


def _of_size(like: Tensor, size: int) -> Tensor:
    """A tensor of so many examples like those of the given one, without reading it."""
    return like.new_empty(()).expand(size, *like.shape[1:])


def _targets(message: MovableMessage, made: Tensor, generator: torch.Generator) -> Tensor:
    targets = message.targets
    if not isinstance(targets, Tensor) or targets.is_complex():
        found = targets.dtype if isinstance(targets, Tensor) else type(targets).__name__
        raise TypeError(
            "Targets should be a tensor of integers or of floating-point numbers, so that examples"
            f" can be made up for a shape. Found {found}. Use public examples"
            " (source=Public((inputs, targets))), or the private batch (source='private')."
        )
    targets = _of_size(targets, len(made))
    if targets.is_floating_point():
        return normal_like(targets, generator)
    if targets.dtype is torch.bool:
        return _drawn(targets, 2, generator)
    few = made[:FEW]
    return _drawn(targets, _classes(outputs_of(message, few), targets[: len(few)]), generator)


def _drawn(targets: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    """Each class as often as every other one, in a random order."""
    order = torch.randperm(targets.numel(), generator=generator, device=generator.device)
    drawn = (order % classes).reshape(targets.shape)
    return drawn.to(device=targets.device, dtype=targets.dtype)


def _classes(outputs: Any, targets: Tensor) -> int:
    """How many classes outputs of shape (B, C, ...) or (B, ..., C) tell apart.

    >>> _classes(torch.zeros(4, 10), torch.zeros(4)), _classes(torch.zeros(4), torch.zeros(4))
    (10, 2)
    >>> _classes(torch.zeros(4, 21, 8, 8), torch.zeros(4, 8, 8))
    21
    """
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else ()
    wanted = tuple(targets.shape)
    if (shape and shape == wanted) or shape == (*wanted, 1):
        return 2
    if len(shape) > 1 and (shape[0], *shape[2:]) == wanted:
        return shape[1]
    if shape and shape[:-1] == wanted:
        return shape[-1]
    found = f"shape {shape}" if shape else type(outputs).__name__
    raise ValueError(
        f"Outputs should have the shape (B, C, ...) or (B, ..., C) for targets of shape {wanted},"
        f" so that the classes C can be counted. Found {found}. Use public examples"
        " (source=Public((inputs, targets))), or the private batch (source='private')."
    )
