"""Measurements whose squares fit into the range of floating-point numbers."""

import math

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.messages import GradientMessage, LocalUpdateMessage, Message

from ._estimator import Estimator, Measurement

LEAST = 1e-24
"""Of the largest squared sensitivity in float32: where all are below, many may be lost."""


def measure_in_range(
    estimator: Estimator, message: Message, inputs: Tensor, generator: torch.Generator
) -> tuple[Tensors, Measurement]:
    """The message's values, and its measurement: in float64 where float32 loses its squares.

    The units of inputs, weights and loss then make no difference. Messages that are not made of a
    module stay in their own precision.
    """
    state = generator.get_state()
    measured = estimator(message, inputs, generator)
    if not isinstance(measured, Measurement):  # a user's own estimator may return a plain tuple
        measured = Measurement(*measured)
    known = isinstance(message, (GradientMessage, LocalUpdateMessage))
    if not known or inputs.dtype == torch.float64 or _fits(measured):
        return measured.values, measured
    try:
        torch.Generator.set_state(generator, state)  # a secure one's probes can be repeated
        wide = estimator(message.double(), inputs.double(), generator)  # type: ignore[attr-defined]
    except RuntimeError:  # a model that insists on float32
        return measured.values, measured
    return measured.values, wide


def _fits(measured: Measurement) -> bool:
    squares = measured.squared_sensitivities.values()
    largest = [float(square.max()) for square in squares if square.numel()]
    return all(map(math.isfinite, largest)) and max(largest, default=0.0) >= LEAST
