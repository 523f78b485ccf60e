"""Rounding of every entry to the same grid."""

from dataclasses import dataclass

from gradveil._checks import check_positive
from gradveil.mechanisms import RoundingMechanism, constant_like
from gradveil.sensitivity import Moments, check_moments

from ._base import Defense


@dataclass(frozen=True)
class Rounding(Defense):
    """y_i = step · round(g_i / step). Deterministic, so it has no bound and no guarantee.

    Args:
        step: The distance of the grid's points.
    """

    label = "rounding"
    family = "rounding"
    amount_name = "step"

    step: float

    def __post_init__(self) -> None:
        check_positive(self.step, "step")

    @property
    def needs_sensitivities(self) -> bool:
        """Never."""
        return False

    @property
    def reads_moments(self) -> bool:
        """Never: the grid is given."""
        return False

    def plan(self, moments: Moments) -> RoundingMechanism:
        """The same step everywhere."""
        check_moments(moments)
        return RoundingMechanism(constant_like(self.step, moments.squared_values))
