"""The prior that a denoiser gives: how sharply examples are known, at some noise."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradveil._checks import (
    check_callable,
    check_count,
    check_flag,
    check_inputs,
    check_positive,
)
from gradveil._random import generator_or_fresh, normal_like
from gradveil.theory import Prior

from ._denoiser import Denoiser, check_samples
from ._linear_score import LinearScore
from ._score_moments import ScoreMoments, score_moments

Denoise = Callable[[Tensor, float, Tensor | None], Tensor]
"""From examples with noise, its level and their labels to guesses of the examples."""

LEAST = 1e-10
"""The least variance that an example keeps in any direction, over the largest."""


@dataclass(frozen=True)
class LearnedPrior(Prior):
    """What a denoiser D knows of examples x, from its error on x_τ = x + τ n, n ~ N(0, I).

    The score of x_τ is s(z) = (E[x | z] - z) / τ² (Tweedie's formula), and its information is

        J_τ = E[s sᵀ] = I / τ² - E[Cov(x | x_τ)] / τ⁴,   tr J_τ = n / τ² - MMSE(τ) / τ⁴.

    Pixels with atoms (a black border) have infinite information; with noise they have 1 / τ². Two
    bounds follow.

    1. Of the examples themselves, the default: tr (J_D + K⁻¹)⁻¹ with K = J_τ⁻¹ - τ². The Gaussian
       of covariance K has the error of the examples at noise τ, and a smaller one at more noise:
       their curves cross once (Guo, Wu, Shamai and Verdú, 2011). So it holds where the message
       tells at most as much as x_τ does, J_D ≤ I / τ² (`largest`), and is nearly linear.
    2. `smoothed()`, of examples with noise: tr (J_D + J_τ)⁻¹, Theorem 1 for data x_τ, J_D being
       that at x_τ. It holds for every smooth message, says nothing exact of examples without
       noise, and is small.

    For Gaussian examples K is their covariance, and both are exact. A learned D has a larger error
    than the best one, so that it shows too little of J_τ: **bounds with this prior err upwards**. A
    better denoiser can only lower them; they are never above those of the fitted Gaussian.

    Args:
        information: J_τ of one example, shape (n, n), positive definite and at most 1 / τ².
        level: τ.
        name: How a bound refers to it.
        error: The denoiser's mean squared error per entry on held-out samples, above MMSE(τ) / n.
        noisy: Whether it is the prior of examples with noise, see `smoothed`.

    >>> LearnedPrior(torch.eye(3), level=0.5).level
    0.5
    """

    information: Tensor
    level: float
    name: str = "learned"
    error: float | None = None
    noisy: bool = False
    precision: Tensor = field(init=False, repr=False)
    covariance: Tensor = field(init=False, repr=False)

    errs = "upwards"
    """The direction in which bounds with this prior are wrong."""

    def __post_init__(self) -> None:
        check_inputs(self.information, "information")
        check_positive(self.level, "level")
        check_flag(self.noisy, "noisy")
        shape = self.information.shape
        if len(shape) != 2 or shape[0] != shape[1]:
            raise ValueError(
                f"Parameter `information` should have the shape (n, n). Found {tuple(shape)}."
            )
        values, vectors = torch.linalg.eigh(self.information.double())
        if not 0 < float(values.min()) <= float(values.max()) <= 1.001 * self.level**-2:
            raise ValueError(
                "Parameter `information` should be positive definite and at most 1 / level²."
                f" Found eigenvalues from {float(values.min()):.3g} to {float(values.max()):.3g}."
                " Measure it with more samples or draws."
            )
        known = values.reciprocal() - (0.0 if self.noisy else self.level**2)
        known = known.clamp(min=LEAST * float(known.max()))
        object.__setattr__(self, "covariance", (vectors * known) @ vectors.T)
        object.__setattr__(self, "precision", (vectors / known) @ vectors.T)

    @property
    def largest(self) -> float:
        """Of the information of a message in any direction, where the bound holds."""
        return float("inf") if self.noisy else self.level**-2

    def drawn(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """The inputs, with noise of the prior's level if it is a prior of those."""
        return inputs + self.level * normal_like(inputs, generator) if self.noisy else inputs

    def smoothed(self) -> "LearnedPrior":
        """The prior of examples with noise τ."""
        return replace(self, noisy=True, name=f"{self.name}; of examples with that noise")

    @classmethod
    def measure(
        cls,
        denoiser: Denoise,
        samples: Tensor,
        labels: Tensor | None = None,
        *,
        level: float,
        draws: int = 8,
        generator: torch.Generator | None = None,
    ) -> "LearnedPrior":
        """J_τ from what a denoiser does to samples that it was not trained on.

        Args:
            denoiser: A `Denoiser`, or any function of (noisy examples, level, labels).
            samples: Held-out examples: times `draws` several for each entry of an example.
            labels: Their classes, where the attacker is told them.
            level: τ. For a message of information J_D: 1 / √λ, λ the largest eigenvalue.
            draws: How often each sample gets noise.
            generator: Of the noise.
        """
        check_callable(denoiser, "denoiser", "Use `Denoiser.fit(samples)`.")
        check_samples(samples, labels)
        check_positive(level, "level")
        check_count(draws, "draws")
        if isinstance(denoiser, Denoiser) and not denoiser.levels[0] <= level <= denoiser.levels[1]:
            raise ValueError(
                f"Parameter `level` should be one that the denoiser was trained for, from"
                f" {denoiser.levels[0]:.3g} to {denoiser.levels[1]:.3g}. Found {level:.3g}. Fit it"
                " with other `levels`."
            )
        linear = LinearScore.fit(samples, labels, float(level))
        generator = generator_or_fresh(generator)
        seen = score_moments(denoiser, linear, samples, labels, draws, generator)
        name = _name(level, len(samples), seen, labels is not None)
        return cls(seen.information(level), float(level), name, seen.error)


def _name(level: float, count: int, seen: ScoreMoments, told: bool) -> str:
    within = " within classes" if told else ""
    return (
        f"learned{within}: a denoiser whose error at noise {level:.3g} is {seen.error:.3g} per"
        f" entry on {count} held-out samples (not the least possible, so the bound errs upwards)"
    )
