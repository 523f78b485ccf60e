"""No defense: the baseline that sends everything as it is."""

from dataclasses import dataclass

from gradveil.mechanisms import Mechanism, constant_like
from gradveil.sensitivity import Moments, check_moments

from ._planning import FixedDefense


@dataclass(frozen=True)
class NoDefense(FixedDefense):
    """Sends the message itself. No guarantee of any kind.

    >>> import torch
    >>> NoDefense()(lambda inputs: {"w": inputs.sum(0)}, torch.ones(2, 3))
    {'w': tensor([2., 2., 2.])}
    """

    label = "no defense"
    family = "none"
    is_undefended = True

    def plan(self, moments: Moments) -> Mechanism:
        """No noise, nothing pruned."""
        check_moments(moments)
        values = moments.squared_values
        return Mechanism(std=constant_like(0.0, values), keep=constant_like(1.0, values))
