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

    >>> import torch
    >>> from gradveil import Moments
    >>> moments = Moments(
    ...     {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, input_size=2
    ... )
    >>> GradientNoise(scale=0.5).plan(moments).std["w"]
    tensor([0.5000, 0.5000])
    """

    label = "noise"

    @property
    def reads_moments(self) -> bool:
        """Not where the scale is given."""
        return self.scale is None

    def shape(self, moments: Moments) -> Tensors:
        """r_i = 1."""
        return constant_like(1.0, moments.squared_values)
