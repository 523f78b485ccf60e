"""A denoiser as what an attacker believes of images."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradveil._checks import check_callable, check_count, check_positive
from gradveil.denoising import Denoiser

from ._regularisers import Multiply

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

    >>> from gradveil.denoising import Denoiser
    >>> samples = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    >>> denoiser = Denoiser.fit(samples, steps=5, generator=torch.Generator().manual_seed(1))
    >>> Denoised(denoiser, level=0.5).level
    0.5
    """

    denoiser: Denoiser
    level: float | None = None
    start: float = 3.0
    rounds: int = 12
    labels: Tensor | None = None
    """Of the images, where the denoiser is to be told them."""

    def __post_init__(self) -> None:
        check_callable(self.denoiser, "denoiser", "Use `Denoiser.fit(samples, labels)`.")
        if self.level is not None:
            check_positive(self.level, "level")
        check_positive(self.start, "start")
        check_count(self.rounds, "rounds")

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
