"""Rounding of every entry to the same grid."""

from dataclasses import dataclass

from gradveil._checks import check_positive
from gradveil.mechanisms import RoundingMechanism, constant_like
from gradveil.sensitivity import Moments, check_moments

from ._planning import FixedDefense


@dataclass(frozen=True)
class Rounding(FixedDefense):
    """y_i = step · round(g_i / step). Deterministic, so it has no bound and no guarantee.

    Args:
        step: The distance of the grid's points.

    >>> import torch
    >>> Rounding(step=0.5)(lambda inputs: {"w": inputs.sum(0)}, torch.tensor([[1.2, -0.6]]))
    {'w': tensor([ 1.0000, -0.5000])}
    """

    label = "rounding"
    family = "rounding"
    amount_name = "step"

    step: float

    def __post_init__(self) -> None:
        check_positive(self.step, "step")

    def plan(self, moments: Moments) -> RoundingMechanism:
        """The same step everywhere."""
        check_moments(moments)
        return RoundingMechanism(constant_like(self.step, moments.squared_values))
