"""The mechanism that sends signs."""

from dataclasses import dataclass

import torch

from gradveil._checks import check_finite, check_positive, check_values
from gradveil._typing import Tensors

from ._deterministic import DeterministicMechanism


@dataclass(frozen=True)
class SignMechanism(DeterministicMechanism):
    """y_i = step · sign(g_i), with sign(0) = 0.

    Deterministic: the Cramér-Rao argument says nothing about it, and the bound is 0.

    >>> SignMechanism(step=0.5).apply({"w": torch.tensor([3.0, -4.0, 0.0])})["w"]
    tensor([ 0.5000, -0.5000,  0.0000])
    """

    step: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.step, "step")

    def apply(self, values: Tensors, generator: torch.Generator | None = None) -> Tensors:
        """The signs; nothing is drawn."""
        check_values(values)
        check_finite(values)
        return {name: self.step * value.sign() for name, value in values.items()}
