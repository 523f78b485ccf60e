"""Messages that are made of another one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import check_inputs
from gradveil._typing import Tensors

from ._explain import check_message
from ._protocol import Message, values_of


class Wrapper:
    """What stands around a message, whose parameters, targets and loss it has."""

    message: Any
    passed_on: tuple[str, ...] = ("parameters", "targets", "loss")

    def __getattr__(self, name: str) -> Any:
        """What is not its own is that of the message."""
        if name not in self.passed_on:
            raise AttributeError(f"{type(self).__name__} has no attribute `{name}`.")
        return getattr(self.message, name)


def _same(thing: Any) -> Any:
    return thing


class MappedMessage(Wrapper):
    """after(g(before(x))) for a message g; without a function, that side stays as it is.

    Args:
        message: Anything that maps inputs to values.
        before: From the private inputs to those that the message sees.
        after: From the message's values to what is looked at.

    >>> doubled = MappedMessage(lambda x: {"w": x.sum(0)}, before=lambda x: 2 * x)
    >>> doubled(torch.tensor([[1.0, 2.0]]))["w"]
    tensor([2., 4.])
    """

    def __init__(
        self,
        message: Message,
        before: Callable[[Tensor], Tensor] = _same,
        after: Callable[[Tensors], Tensors] = _same,
    ) -> None:
        check_message(message)
        self.message, self.before, self.after = message, before, after

    def __call__(self, inputs: Tensor) -> Tensors:
        """The changed values; differentiable with respect to the inputs."""
        return self.after(self.message(self.before(inputs)))

    def values(self, inputs: Tensor) -> Tensors:
        """The same numbers for a client that only sends them."""
        check_inputs(inputs)
        with torch.no_grad():
            return self.after(values_of(self.message, self.before(inputs)))
