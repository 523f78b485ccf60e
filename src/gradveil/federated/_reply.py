"""A client's reply, and its costs, which stay with the client."""

from dataclasses import dataclass
from typing import NamedTuple

from gradveil._checks import check_count, check_finite, check_structure
from gradveil._typing import Tensors
from gradveil.messages import size_in_bytes


@dataclass(frozen=True)
class Reply:
    """All that leaves a client: the defended values, and how many examples they stand for.

    >>> import torch
    >>> Reply({"w": torch.ones(2)}, examples=16).examples
    16
    """

    values: Tensors
    examples: int

    @property
    def size(self) -> int:
        """Bytes of the values; see `size_in_bytes`."""
        return size_in_bytes(self.values)

    def check(self, expected: Tensors) -> None:
        """Require the names and shapes of `expected`, finite values and a count of examples."""
        check_structure(self.values, expected, "reply.values", "the server's parameters")
        check_finite(self.values, "reply.values")
        check_count(self.examples, "reply.examples")


class Costs(NamedTuple):
    """What one reply cost, and what it is worth. Local only: none of this is ever sent.

    A simulation may read it; in a deployment it stays in the client's process.
    """

    loss: float | None
    """Of the batch, undefended, before the step; `None` for a batch without examples."""
    utility_first: float | None
    """U1 of the mechanism that made the reply; `None` for a defense without one."""
    utility_second: float | None
    """U2, likewise."""
    seconds_gradient: float
    """One plain gradient (or local update) of the same batch, timed beside the reply."""
    seconds_defense: float
    """What the reply took beyond that; 0 where the clock says less."""
