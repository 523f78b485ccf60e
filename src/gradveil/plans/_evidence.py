"""What one batch of public examples says of a message."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from gradveil._memory import is_out_of_memory
from gradveil._typing import Tensors
from gradveil.messages import GradientMessage, Message, separates
from gradveil.sensitivity import (
    Estimator,
    Moments,
    check_moments,
    chunk_size,
    measure_with_values,
)


@dataclass(frozen=True)
class Evidence:
    """Moments of one batch, with what its single examples add to them where that is known.

    One batch gradient g = Σ_b g_b is a poor estimate of E g²: it is one draw. Over batches of n
    examples E g² = n E g_b² + n (n - 1) (E g_b)², and all of the examples tell of E g_b².
    """

    moments: Moments
    """g² and s² of the batch."""
    values: Tensors | None = None
    """g; `None` where examples do not add up."""
    example_squares: Tensors | None = None
    """Σ_b g_b², beside the values."""
    examples: int = 1
    """In the batch."""

    def __post_init__(self) -> None:
        check_moments(self.moments)

    @property
    def spread(self) -> Tensors:
        """Σ_b g_b², or g² where examples do not add up."""
        return dict(self.example_squares or self.moments.squared_values)


def gather(
    message: Message,
    inputs: Tensor,
    generator: torch.Generator,
    estimator: Estimator | str = "auto",
    clip: float | None = None,
    *,
    judged: bool = False,
) -> Evidence:
    """Measure a message at a public batch, and its examples one by one where they add up."""
    values, moments = measure_with_values(
        message, inputs, estimator, clip, generator, judged=judged
    )
    squares = None if clip is not None else _example_squares(message, inputs, values)
    if squares is None:
        return Evidence(moments)
    return Evidence(moments, values, squares, len(inputs))


def _example_squares(message: Message, inputs: Tensor, values: Tensors) -> Tensors | None:
    """Σ_b g_b²; `None` where the message is no sum over examples, or cannot be taken apart."""
    if not isinstance(message, GradientMessage) or not separates(message, inputs):
        return None
    signals = message.output_gradient(inputs)
    if not isinstance(signals, Tensor) or signals.shape[:1] != inputs.shape[:1]:
        return None
    squares = {name: torch.zeros_like(value) for name, value in values.items()}
    size = chunk_size(values)
    try:
        for rows, deltas in zip(inputs.split(size), signals.split(size), strict=True):
            for name, own in vmap(message.example_gradient)(rows, deltas).items():
                squares[name] += own.detach().square().sum(0)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        return None
    return squares
