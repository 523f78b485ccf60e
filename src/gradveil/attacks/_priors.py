"""What an attacker believes of inputs before it sees a message, as an energy to be minimised."""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from gradveil._checks import check_kind, check_not_negative
from gradveil._tensors import Multiply
from gradveil.denoising import Denoiser
from gradveil.theory import GaussianPrior


def total_variation(inputs: Tensor, corner: float = 0.0) -> Tensor:
    """Σ |x_i - x_j| over neighbours in the last two dimensions, divided by the number of entries.

    Anisotropic. 0 for examples that are not images (fewer than two dimensions). With a corner, |t|
    is smoothed to √(t² + corner²).
    """
    if inputs.dim() < 3:
        return inputs.new_zeros(())
    both = _differences(inputs)
    rows, columns = ((d.square() + corner**2).sqrt() if corner > 0 else d.abs() for d in both)
    return (rows.sum() + columns.sum()) / inputs.numel()


def _differences(inputs: Tensor) -> tuple[Tensor, Tensor]:
    return inputs[..., 1:, :] - inputs[..., :-1, :], inputs[..., :, 1:] - inputs[..., :, :-1]


CORNER = 0.02
"""Differences below this count as quadratic in second-order steps."""


@dataclass(frozen=True)
class TotalVariation:
    """E(x) = strength · Σ |x_i - x_j| over neighbours: a Laplace prior on their differences.

    >>> TotalVariation(strength=0.5)(torch.eye(2)[None])
    tensor(2.)
    """

    strength: float = 1.0
    """The inverse of the mean absolute difference that is expected."""

    def __post_init__(self) -> None:
        check_not_negative(self.strength, "strength")

    def __call__(self, inputs: Tensor) -> Tensor:
        return self.strength * total_variation(inputs) * inputs.numel()

    def gradient(self, inputs: Tensor) -> Tensor:
        """Of Huber's function with that corner instead of the absolute value."""
        return self.curvature(inputs)(inputs)

    def curvature(self, inputs: Tensor) -> Multiply:
        """Lagged diffusivity: |t| ≈ t² / (2 |t₀|) + |t₀| / 2 around the present differences."""
        if inputs.dim() < 3:
            return torch.zeros_like
        over, along = (self.strength / d.abs().clamp(min=CORNER) for d in _differences(inputs))

        def multiply(direction: Tensor) -> Tensor:
            rows, columns = _differences(direction)
            rows, columns = rows * over, columns * along
            vertical = pad(rows, (0, 0, 1, 0)) - pad(rows, (0, 0, 0, 1))
            return vertical + pad(columns, (1, 0)) - pad(columns, (0, 1))

        return multiply


@dataclass(frozen=True)
class Quadratic:
    """E(x) = ½ ⟨x - μ, Λ (x - μ)⟩."""

    mean: Tensor
    """μ, of one example or of all."""
    multiply: Multiply

    def __call__(self, inputs: Tensor) -> Tensor:
        centred = self._centred(inputs)
        return 0.5 * (centred * self.multiply(centred)).sum()

    def gradient(self, inputs: Tensor) -> Tensor:
        return self.multiply(self._centred(inputs))

    def curvature(self, inputs: Tensor) -> Multiply:
        return self.multiply

    def _centred(self, inputs: Tensor) -> Tensor:
        return inputs - self.mean.to(inputs).reshape(-1, *inputs.shape[1:])


def energy_of(prior: TotalVariation | GaussianPrior | Denoiser | None) -> "Energy":
    """The prior as an energy; `None` is flat, and an error what is no prior."""
    if prior is None:
        return TotalVariation(0.0)
    if isinstance(prior, Denoiser):
        return Denoised(prior)
    if not isinstance(prior, GaussianPrior):
        check_kind(prior, "prior", TotalVariation, "Use `TotalVariation()`.")
        return prior
    precision = prior.precision
    return Quadratic(prior.mean, lambda v: (v.flatten(1) @ precision.to(v)).view_as(v))


START = 3.0
"""τ at the start of the last steps with a denoiser."""


@dataclass(frozen=True)
class Denoised:
    """E(x) = ‖x - D(x, τ)‖² / (2τ²), whose slope with D held fixed is -∇log p_τ(x).

    p_τ is the density of images with noise τ, and (D(x) - x) / τ² its score (Tweedie's formula).
    In second-order steps 1/τ² stands for the curvature: a step is then one of half-quadratic
    splitting, the message's best fit near D(x). The attack ends with such steps along falling
    levels (Zhang et al., "Plug-and-play image restoration with deep denoiser prior", 2021): first
    the outline of an image, then its details.
    """

    denoiser: Denoiser
    """Trained on public examples in the units of the inputs."""
    level: float | None = None
    """τ at the end; `None`: that at which an image with noise tells at least as much of every
    direction as the message, where errors are smallest in the mean. Below it the denoiser adds
    details that the message does not show."""
    labels: Tensor | None = None
    """Of the images, where the denoiser is to be told them."""

    def __call__(self, inputs: Tensor) -> Tensor:
        return self.near(inputs)(inputs)

    def gradient(self, inputs: Tensor) -> Tensor:
        """(x - D(x)) / τ², the negative score."""
        return self.near(inputs).gradient(inputs)

    def curvature(self, inputs: Tensor) -> Multiply:
        """1/τ², which is above that of -log p_τ."""
        return lambda direction: direction / self.now**2

    def near(self, inputs: Tensor) -> Quadratic:
        """The energy around these inputs, with D held fixed."""
        return Quadratic(self.guess(inputs), self.curvature(inputs))

    def guess(self, inputs: Tensor) -> Tensor:
        """D(x, τ), not differentiated."""
        return self.denoiser(inputs.detach(), self.now, self.labels).detach()

    @property
    def now(self) -> float:
        """τ of the energy; before the last steps decide it, that of the first-order search."""
        return 0.3 if self.level is None else self.level

    def levels(self) -> list[float]:
        """Twelve from the start down to the end, each the same share of the one before."""
        ratio = min(1.0, self.now / START)
        return [max(START, self.now) * ratio ** (k / 11) for k in range(12)]


Energy: TypeAlias = TotalVariation | Quadratic | Denoised
"""-log p(x) of a batch up to a constant; its `gradient`, where need be of a smoothed one; and its
`curvature`, v ↦ H v with a positive semi-definite H that stands for the second derivative."""
