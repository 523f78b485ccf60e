"""A message that is changed before or behind."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import check_inputs
from gradveil._typing import Tensors

from ._explain import check_message
from ._protocol import Message, values_of


class MappedMessage:
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
        before: Callable[[Tensor], Tensor] | None = None,
        after: Callable[[Tensors], Tensors] | None = None,
    ) -> None:
        check_message(message)
        self.message, self.before, self.after = message, before, after

    def __getattr__(self, name: str) -> Any:
        """Parameters, targets and loss are those of the message."""
        if name not in ("parameters", "targets", "loss"):
            raise AttributeError(f"{type(self).__name__} has no attribute `{name}`.")
        return getattr(self.message, name)

    def __call__(self, inputs: Tensor) -> Tensors:
        """The changed values; differentiable with respect to the inputs."""
        return self._ended(self.message(self._begun(inputs)))

    def values(self, inputs: Tensor) -> Tensors:
        """The same numbers for a client that only sends them."""
        check_inputs(inputs)
        with torch.no_grad():
            return self._ended(values_of(self.message, self._begun(inputs)))

    def _begun(self, inputs: Tensor) -> Tensor:
        return inputs if self.before is None else self.before(inputs)

    def _ended(self, values: Tensors) -> Tensors:
        return values if self.after is None else self.after(values)
