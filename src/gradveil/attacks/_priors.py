"""What an attacker believes of inputs before it sees a message, as an energy to be minimised."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradveil._checks import (
    check_methods,
    check_not_negative,
    check_positive,
)
from gradveil.denoising import Denoiser
from gradveil.messages import FunctionalLoss
from gradveil.theory import GaussianPrior

from ._model_layers import recorded
from ._observation import Observation

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


def energy_of(prior: "Energy | GaussianPrior | Denoiser | None") -> Energy:
    """The prior as an energy; `None` is flat."""
    if prior is None:
        return TotalVariation(0.0)
    if isinstance(prior, Denoiser):
        return Denoised(prior)
    return GaussianEnergy(prior) if isinstance(prior, GaussianPrior) else prior


def check_prior(prior: object) -> None:
    """Require a prior of the theory, a denoiser, an energy, or none."""
    if prior is not None and not isinstance(prior, (GaussianPrior, Denoiser)):
        check_methods(prior, "prior", ("gradient", "curvature"), "`TotalVariation()`")


def _absolute(values: Tensor, corner: float) -> Tensor:
    return (values.square() + corner**2).sqrt() if corner > 0 else values.abs()


def _differences(inputs: Tensor) -> tuple[Tensor, Tensor]:
    return inputs[..., 1:, :] - inputs[..., :-1, :], inputs[..., :, 1:] - inputs[..., :, :-1]


def _differences_transposed(rows: Tensor, columns: Tensor) -> Tensor:
    pad = torch.nn.functional.pad
    vertical = pad(rows, (0, 0, 1, 0)) - pad(rows, (0, 0, 0, 1))
    return vertical + pad(columns, (1, 0)) - pad(columns, (0, 1))


SEARCH = 0.3
"""τ of the first-order search where none is given."""


@dataclass(frozen=True)
class Denoised:
    """E(x) = ‖x - D(x, τ)‖² / (2τ²), whose slope with D held fixed is -∇log p_τ(x).

    p_τ is the density of images with noise τ, and (D(x) - x) / τ² its score (Tweedie's formula).
    In second-order steps 1/τ² stands for the curvature: a step is then one of half-quadratic
    splitting, the message's best fit near D(x). The attack ends with such steps along falling
    levels (Zhang et al., "Plug-and-play image restoration with deep denoiser prior", 2021): first
    the outline of an image, then its details.

    Args:
        denoiser: Trained on public examples in the units of the inputs.
        level: τ at the end; `None`: that at which an image with noise tells at least as much of
            every direction as the message, where errors are smallest in the mean. Below it the
            denoiser adds details that the message does not show.
        start: τ at the start of the last steps.
        rounds: How many levels there are from the start to the end.
    """

    denoiser: Denoiser
    level: float | None = None
    start: float = 3.0
    rounds: int = 12
    labels: Tensor | None = None
    """Of the images, where the denoiser is to be told them."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """The energy; differentiated, it is the negative score."""
        return 0.5 * (inputs - self.guess(inputs)).square().sum() / self.now**2

    def gradient(self, inputs: Tensor) -> Tensor:
        """(x - D(x)) / τ² for each example."""
        return (inputs - self.guess(inputs)) / self.now**2

    def curvature(self, inputs: Tensor) -> Multiply:
        """1/τ², which is above that of -log p_τ."""
        return lambda direction: direction / self.now**2

    def guess(self, inputs: Tensor) -> Tensor:
        """D(x, τ), not differentiated."""
        return self.denoiser(inputs.detach(), self.now, self.labels).detach()

    @property
    def now(self) -> float:
        """τ of the energy, before the last steps decide it."""
        return SEARCH if self.level is None else self.level

    def knowing(self, labels: Tensor) -> "Denoised":
        """The same for images of these classes."""
        return replace(self, labels=labels)

    def levels(self) -> list[float]:
        """From the start down to the end, each the same share of the one before."""
        if self.now >= self.start:
            return [self.now] * self.rounds
        ratio = (self.now / self.start) ** (1 / max(1, self.rounds - 1))
        return [self.start * ratio**k for k in range(self.rounds)]


@dataclass(frozen=True)
class Near:
    """E(x) = ‖x - guess‖² / (2τ²)."""

    guess: Tensor
    level: float

    def __call__(self, inputs: Tensor) -> Tensor:
        """The energy."""
        return torch.as_tensor(0.5 * (inputs - self.guess).square().sum() / self.level**2)

    def gradient(self, inputs: Tensor) -> Tensor:
        """(x - guess) / τ²."""
        return (inputs - self.guess) / self.level**2

    def curvature(self, inputs: Tensor) -> Multiply:
        """1/τ²."""
        return lambda direction: direction / self.level**2


class BatchNormDistance:
    """How far the statistics of a batch are from the running ones, over all BatchNorm layers.

    R(x) = mean over layers l and channels of ((μ_l(x) - μ̂_l) / σ̂_l)² + (σ_l(x) / σ̂_l - 1)²,

    with μ_l(x), σ_l(x) the mean and standard deviation of the layer's input over examples and
    positions, and μ̂_l, σ̂_l what the model carries. 0 for models without running statistics.

    Reference: Yin et al., "See through Gradients: Image Batch Recovery via GradInversion", CVPR
    2021, Eq. 7 (there norms that are not relative to σ̂).
    """

    def __init__(self, observation: Observation) -> None:
        self.loss = FunctionalLoss(observation.model, observation.loss_fn, seed=0)
        self.layers = [
            module
            for module in observation.model.modules()
            if isinstance(module, _BatchNorm) and module.running_mean is not None
        ]

    def __bool__(self) -> bool:
        return bool(self.layers)

    def __call__(self, inputs: Tensor) -> Tensor:
        """R(x), differentiable."""
        if not self.layers:
            return inputs.new_zeros(())
        with recorded([("", layer) for layer in self.layers]) as seen:
            self.loss.outputs(self.loss.parameters, inputs)
        return torch.stack([_distance(layer, values) for _, layer, values in seen]).mean()


def _distance(layer: nn.Module, values: Tensor) -> Tensor:
    assert isinstance(layer, _BatchNorm)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    over = [0, *range(2, values.dim())]
    spread = (layer.running_var.detach() + layer.eps).sqrt()
    mean, variance = values.mean(over), values.var(over, unbiased=False)
    shift = (mean - layer.running_mean.detach()) / spread
    ratio = (variance + layer.eps).sqrt() / spread
    return (shift.square() + (ratio - 1).square()).mean()
