"""Isotropic Gaussian noise: the classical twin of the optimal noise."""

from dataclasses import dataclass

from gradveil._typing import Tensors
from gradveil.mechanisms import constant_like
from gradveil.sensitivity import Moments

from ._planning import NoiseDefense, takes_plan


@takes_plan
@dataclass(frozen=True)
class GradientNoise(NoiseDefense):
    """Isotropic Gaussian noise (Eq. 8 with Σ = scale² I). No (ε, δ) guarantee: nothing is clipped.

    Give `scale`, `utility_budget` or `target_error`; see `NoiseDefense` for what they mean.
    """

    label = "noise"

    @property
    def reads_moments(self) -> bool:
        """Not where the scale is given."""
        return self.scale is None

    def shape(self, moments: Moments) -> Tensors:
        """r_i = 1."""
        return constant_like(1.0, moments.squared_values)
