"""One batch, for bounds that are means over several."""

from typing import NamedTuple

from torch import Tensor

from gradveil.mechanisms import AnyMechanism
from gradveil.messages import Message


class BoundCase(NamedTuple):
    """One batch of the population, and what is done to its message."""

    message: Message
    inputs: Tensor
    mechanism: AnyMechanism
