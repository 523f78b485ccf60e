"""What an attacker believes of images before it sees a message, as an energy to be minimised."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gradveil._checks import check_not_negative, check_positive
from gradveil.theory import GaussianPrior

Multiply = Callable[[Tensor], Tensor]


class Energy(Protocol):
    """-log p(x) up to a constant, with its curvature for second-order steps."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """The energy of a batch (examples first), one number."""
        ...

    def gradient(self, inputs: Tensor) -> Tensor:
        """∇E, where need be of a smoothed E."""
        ...

    def curvature(self, inputs: Tensor) -> Multiply:
        """v ↦ H v with a positive semi-definite H that stands for ∇²E."""
        ...


def total_variation(inputs: Tensor, corner: float = 0.0) -> Tensor:
    """Σ |x_i - x_j| over neighbours in the last two dimensions, divided by the number of entries.

    Anisotropic. 0 for examples that are not images (fewer than two dimensions).

    Args:
        inputs: A batch.
        corner: |t| is smoothed to √(t² + corner²) where this is above 0.
    """
    if inputs.dim() < 3:
        return inputs.new_zeros(())
    sizes = (_absolute(difference, corner) for difference in _differences(inputs))
    return torch.as_tensor(sum(size.sum() for size in sizes) / inputs.numel())


@dataclass(frozen=True)
class TotalVariation:
    """E(x) = strength · Σ |x_i - x_j| over neighbours: a Laplace prior on their differences.

    Args:
        strength: The inverse of the mean absolute difference that is expected.
        corner: Differences below this count as quadratic in second-order steps.

    >>> TotalVariation(strength=0.5).corner
    0.02
    """

    strength: float = 1.0
    corner: float = 0.02

    def __post_init__(self) -> None:
        check_not_negative(self.strength, "strength")
        check_positive(self.corner, "corner")

    def __call__(self, inputs: Tensor) -> Tensor:
        """The energy."""
        return self.strength * total_variation(inputs) * inputs.numel()

    def gradient(self, inputs: Tensor) -> Tensor:
        """Of Huber's function with that corner instead of the absolute value."""
        return self.curvature(inputs)(inputs)

    def curvature(self, inputs: Tensor) -> Multiply:
        """Lagged diffusivity: |t| ≈ t² / (2 |t₀|) + |t₀| / 2 around the present differences."""
        if inputs.dim() < 3:
            return torch.zeros_like
        weights = [
            self.strength / difference.abs().clamp(min=self.corner)
            for difference in _differences(inputs)
        ]

        def multiply(direction: Tensor) -> Tensor:
            parts = zip(_differences(direction), weights, strict=True)
            return _differences_transposed(*(d * w for d, w in parts))

        return multiply


@dataclass(frozen=True)
class GaussianEnergy:
    """E(x) = ½ Σ_b (x_b - μ)ᵀ Λ (x_b - μ), of the theory's `GaussianPrior`."""

    prior: GaussianPrior

    def __call__(self, inputs: Tensor) -> Tensor:
        """The energy."""
        centred = inputs.flatten(1) - self.prior.mean.to(inputs)
        return 0.5 * (centred * (centred @ self.prior.precision.to(inputs))).sum()

    def gradient(self, inputs: Tensor) -> Tensor:
        """Λ (x_b - μ) for each example."""
        centred = inputs.flatten(1) - self.prior.mean.to(inputs)
        return (centred @ self.prior.precision.to(inputs)).view_as(inputs)

    def curvature(self, inputs: Tensor) -> Multiply:
        """Λ, once for each example."""
        precision = self.prior.precision.to(inputs)
        return lambda direction: (direction.flatten(1) @ precision).view_as(direction)


def energy_of(prior: "Energy | GaussianPrior | None") -> Energy:
    """The prior as an energy; `None` is flat."""
    if prior is None:
        return TotalVariation(0.0)
    return GaussianEnergy(prior) if isinstance(prior, GaussianPrior) else prior


def _absolute(values: Tensor, corner: float) -> Tensor:
    return (values.square() + corner**2).sqrt() if corner > 0 else values.abs()


def _differences(inputs: Tensor) -> tuple[Tensor, Tensor]:
    return inputs[..., 1:, :] - inputs[..., :-1, :], inputs[..., :, 1:] - inputs[..., :, :-1]


def _differences_transposed(rows: Tensor, columns: Tensor) -> Tensor:
    pad = torch.nn.functional.pad
    vertical = pad(rows, (0, 0, 1, 0)) - pad(rows, (0, 0, 0, 1))
    return vertical + pad(columns, (1, 0)) - pad(columns, (0, 1))
