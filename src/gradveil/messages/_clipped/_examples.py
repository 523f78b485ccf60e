"""The gradients of examples one by one."""

from collections.abc import Iterator

from torch import Tensor

from gradveil._typing import Tensors

from .._gradient import GradientMessage
from ._losses import check_targets, example_losses
from ._separable import check_outputs, check_separable
from ._sum import each_example

ROOM = 2**23
"""How many numbers of examples × parameters are made at a time."""


def example_gradients(message: GradientMessage, inputs: Tensor) -> Iterator[Tensors]:
    """g_b, the gradient of the loss of example b alone, for some examples at a time, stacked.

    >>> import torch
    >>> message = GradientMessage(torch.nn.Linear(2, 1, bias=False), lambda o, _: o.mean(), None)
    >>> pair = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> [g["weight"].tolist() for g in example_gradients(message, pair)]
    [[[[1.0, 2.0]], [[3.0, 4.0]]]]
    """
    check_targets(message.targets, len(inputs))
    check_separable(message, inputs)
    outputs = message.loss.outputs(message.parameters, inputs)
    check_outputs(outputs, len(inputs))
    delta = example_losses(message.loss, outputs, message.targets)[0]
    size = max(1, ROOM // sum(p.numel() for p in message.parameters.values()))
    for part in zip(inputs.split(size), delta.split(size), strict=True):
        yield each_example(message.example_gradient, *part)
