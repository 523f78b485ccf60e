"""One batch, for bounds that are means over several."""

from typing import NamedTuple

from torch import Tensor

from gradveil.mechanisms import AnyMechanism
from gradveil.messages import Message


class BoundCase(NamedTuple):
    """One batch of the population, and what is done to its message.

    >>> import torch
    >>> from gradveil import Mechanism, mean_bound
    >>> double = lambda inputs: {"w": 2 * inputs.sum(0)}
    >>> batches = torch.arange(24.0).reshape(8, 1, 3)
    >>> cases = [BoundCase(double, batch, Mechanism(std=1.0)) for batch in batches]
    >>> mean_bound(cases).per_entry
    0.25
    """

    message: Message
    inputs: Tensor
    mechanism: AnyMechanism
