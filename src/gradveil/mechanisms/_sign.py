"""The mechanism that sends signs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_finite, check_positive, check_structure, check_values
from gradveil._typing import Tensors

from ._deterministic import DeterministicMechanism
from ._doubt import Doubt
from ._likelihood import rounding_error
from ._reading import Reading, all_sent


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

    def log_likelihood(self, values: Tensors, sent: Tensors, doubt: Doubt | None = None) -> Tensor:
        """log P(sent | values) in float64: 0 where all signs agree.

        A value on the wrong side of 0 by more than rounding errors adds so large a negative number
        that nothing outweighs it. The step is public: there is nothing to be in doubt about.
        """
        check_values(values)
        check_structure(sent, values, "sent", "values")
        terms = [_misfit(value.double(), sent[name]) for name, value in values.items()]
        return torch.stack(terms).sum()

    def doubt(self, other: "SignMechanism", like: Tensors) -> Doubt:
        """None: nothing is planned."""
        return Doubt()

    def read(self, sent: Tensors, realised: bool = True) -> Reading:
        """The half-line that has the sign; {0} where 0 was sent."""
        check_values(sent, "sent")
        return all_sent(
            {name: torch.where(y < 0, -torch.inf, 0.0).to(y) for name, y in sent.items()},
            {name: torch.where(y > 0, torch.inf, 0.0).to(y) for name, y in sent.items()},
            {name: torch.zeros_like(y) for name, y in sent.items()},
        )


def _misfit(value: Tensor, sent: Tensor) -> Tensor:
    """-½ (|v_i| / τ_i)² where the sign is wrong, τ_i the size of a rounding error of the value."""
    wrong = value.sign() != sent.sign()
    error = rounding_error(value.to(sent.dtype))
    return -0.5 * torch.where(wrong, value / error, 0.0).square().sum()
