"""The gradients of examples one by one."""

from collections.abc import Iterator

from torch import Tensor

from gradveil._typing import Tensors

from .._gradient import GradientMessage
from .._mixing import check_layers
from ._isolated import isolated
from ._message import check_targets


def example_gradients(message: GradientMessage, inputs: Tensor) -> Iterator[Tensors]:
    """g_b, the gradient of the loss of example b alone, for some examples at a time, stacked.

    >>> import torch
    >>> message = GradientMessage(torch.nn.Linear(2, 1, bias=False), lambda o, _: o.mean(), None)
    >>> pair = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> [g["weight"].tolist() for g in example_gradients(message, pair)]
    [[[[1.0, 2.0]], [[3.0, 4.0]]]]
    """
    check_targets(message.targets, len(inputs))
    check_layers(message.loss.model)
    for part in isolated(message, inputs, taps=False):
        yield part.others
