"""What differentially private noise looks at: shapes, and the number of examples."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.messages import Message
from gradveil.sensitivity import Moments

from .._micro_batches import Observer


@dataclass(frozen=True)
class ClippedMoments(Moments):
    """Moments of a clipped message, with the number of examples that it came from."""

    examples: int = 0


class ClippedObserver(Observer):
    """Adds up the clipped sums of micro-batches; each has been divided by the same B."""

    def measure(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """The clipped values of one micro-batch."""
        return self._defense.observe(message, inputs, generator)

    def add(
        self,
        message: Message,
        inputs: Tensor,
        generator: torch.Generator,
        past: float = 1.0,
        fresh: float = 1.0,
    ) -> None:
        """Take in a micro-batch. Weights by numbers of examples have no place here."""
        super().add(message, inputs, generator)

    def finish(self) -> tuple[Tensors, Moments]:
        """The whole sum; of the moments a plan needs the shapes only."""
        assert self._sum is not None
        return self._sum
