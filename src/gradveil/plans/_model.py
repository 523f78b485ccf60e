"""Moments of a message from the model alone."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.messages import Message
from gradveil.sensitivity import Moments, measure

from ._synthetic import synthetic

BATCHES = 2
"""Of made-up examples, of the size of the private batch."""


def model_moments(message: Message, inputs: Tensor, generator: torch.Generator) -> Moments:
    """E g² and E‖∇_x g‖² on made-up examples, one number for each tensor.

    Nothing of the private batch enters but its shape and type and those of its targets, so that a
    plan made from this reveals nothing. Made-up examples are of another kind than real ones: what
    is believed of them is how tensors differ, not how the entries of one do.

    Args:
        message: What the client would send; its model is read, its targets are not.
        inputs: The private batch, whose values are not read.
        generator: For the made-up examples and the probes.
    """
    moments = Moments.average(
        measure(*synthetic(message, inputs, generator), generator=generator) for _ in range(BATCHES)
    )
    return Moments(
        squared_values=_means(moments.squared_values),
        squared_sensitivities=_means(moments.known_squared_sensitivities),
        input_size=inputs.numel(),
        hidden=moments.hidden,
        estimator=moments.estimator,
    )


def _means(tensors: Mapping[str, Tensor]) -> Tensors:
    """The mean of each tensor in the place of its entries."""
    return {name: tensor.mean().expand(tensor.shape) for name, tensor in tensors.items()}
