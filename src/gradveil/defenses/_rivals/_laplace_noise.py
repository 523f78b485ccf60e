"""Laplace noise on every parameter."""

from dataclasses import dataclass

from gradveil._checks import check_at_most, check_not_negative
from gradveil.mechanisms import LaplaceMechanism, constant_like
from gradveil.sensitivity import Moments, check_moments

from .._planning import FixedDefense


@dataclass(frozen=True)
class LaplaceNoise(FixedDefense):
    """y = g + noise of the density e^{-|n|/b} / 2b, with b = scale / √2 (Zhu et al. 2019).

    At equal variance, so at equal utility, it reveals twice the Fisher information of Gaussian
    noise. Guarantee: the bound with that information, Σ_i (2/scale²) ∇g_i ∇g_iᵀ; no (ε, δ), since
    nothing is clipped.

    `attacks.Identify` uses its density. `attacks.Adaptive` takes it for Gaussian noise of the same
    variance: its search needs squares.

    Args:
        scale: The standard deviation.

    >>> import torch
    >>> from gradveil import Moments
    >>> moments = Moments(
    ...     {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, input_size=2
    ... )
    >>> LaplaceNoise(scale=0.5).plan(moments).std["w"]
    tensor([0.5000, 0.5000])
    """

    label = "Laplace noise"
    amount_name = "scale"

    scale: float

    def __post_init__(self) -> None:
        check_not_negative(self.scale, "scale")
        check_at_most(self.scale, "scale")

    def plan(self, moments: Moments) -> LaplaceMechanism:
        """The same standard deviation everywhere."""
        check_moments(moments)
        return LaplaceMechanism(constant_like(self.scale, moments.squared_values))
