"""The prior that a denoiser gives: how sharply examples are known, at some noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradveil._checks import check_callable, check_count, check_flag, check_inputs, check_positive
from gradveil._random import generator_or_fresh, normal_like
from gradveil.theory import BoundCase, GaussianPrior, Prior, largest_information

from ._denoiser import Denoiser, Progress, check_samples


@dataclass(frozen=True)
class LinearScore:
    """ℓ(z) = -(C + τ²)⁻¹ (z - μ), of samples with covariance C (within classes) and noise τ."""

    means: Tensor
    """μ of each class, shape (classes, n), float64."""
    information: Tensor
    """(C + τ²)⁻¹."""
    level: float

    @classmethod
    def fit(cls, samples: Tensor, labels: Tensor | None, level: float) -> "LinearScore":
        """From samples, and their classes where the attacker is told them."""
        prior = GaussianPrior.fit(samples, labels=labels)
        smoothed = prior.covariance + level**2 * torch.eye(len(prior.covariance)).to(prior.mean)
        information = torch.cholesky_inverse(torch.linalg.cholesky(smoothed))
        if labels is None:
            return cls(prior.mean[None], information, level)
        flat, count = samples.flatten(1).double(), int(labels.max()) + 1
        sums = flat.new_zeros(count, flat.shape[1]).index_add_(0, labels.to(flat.device), flat)
        numbers = torch.bincount(labels.to(flat.device), minlength=count).clamp(min=1)
        return cls(sums / numbers[:, None], information, level)

    def __call__(self, noisy: Tensor, labels: Tensor | None) -> Tensor:
        """One row for each example, float64."""
        means = self.means[0] if labels is None else self.means[labels.to(self.means.device)]
        return (means - noisy.flatten(1).double()) @ self.information


AT_ONCE = 256
"""Samples that are denoised together."""

BANDS = 16
"""Groups of directions that are calibrated, each by one number."""


@dataclass(frozen=True)
class ScoreMoments:
    """What a learned score ŝ = (D(z) - z) / τ² shows beyond the best linear one ℓ, z = x + τn.

    The true score is s = ℓ + q, where q has nothing in common with any linear function of z. So
    J_P = E[s sᵀ] = (C + τ²)⁻¹ + E[q qᵀ]. What is learned of q is r = ŝ - ℓ.
    """

    linear: Tensor
    """(C + τ²)⁻¹, the information of the Gaussian with the samples' covariance C."""
    squares: Tensor
    """M = E[r rᵀ]."""
    products: Tensor
    """A = E[r (t - ℓ)ᵀ] with t = -n / τ, whose mean given z is s: so A = E[r qᵀ]."""
    error: float
    """E‖D(z) - x‖² per entry."""

    def information(self, level: float) -> Tensor:
        """J_P as far as r shows it, never more than there is but for chance.

        By Cauchy's inequality tr(P E[q qᵀ]) ≥ tr(P A)² / tr(P M) for every projection P, with
        equality where r is proportional to q. P runs over bands of eigenvectors of M; within a band
        the eigenvalues are M's, times (tr(P A) / tr(P M))². In the mean over many entries A is
        known well; entry by entry it is not, for t is mostly noise. J_P is at most 1 / τ².
        """
        values, vectors = torch.linalg.eigh(self.squares)
        shown = ((vectors.T @ self.products) * vectors.T).sum(1)
        bands = torch.arange(len(values)).tensor_split(min(BANDS, len(values)))
        factors = [_share(shown[band], values[band]) for band in bands]
        beyond = (vectors * (values.clamp(min=0) * torch.cat(factors).square())) @ vectors.T
        values, vectors = torch.linalg.eigh(self.linear + beyond)
        matrix: Tensor = (vectors * values.clamp(max=level**-2)) @ vectors.T
        return (matrix + matrix.T) / 2


def _share(shown: Tensor, values: Tensor) -> Tensor:
    """tr(P A) / tr(P M), for each direction of the band; 0 where nothing was learned."""
    total = values.sum()
    share = shown.sum() / total if bool(total > 0) else total
    return share.clamp(min=0).expand(len(values))


def score_moments(
    denoiser: Callable[[Tensor, float, Tensor | None], Tensor],
    linear: LinearScore,
    samples: Tensor,
    labels: Tensor | None,
    draws: int,
    generator: torch.Generator,
) -> ScoreMoments:
    """The moments over all samples, each with several draws of noise."""
    size, level = samples[0].numel(), linear.level
    squares, products = torch.zeros(2, size, size, dtype=torch.float64, device=samples.device)
    error, count = 0.0, draws * len(samples)
    for index in torch.arange(len(samples)).split(AT_ONCE):
        clean, known = samples[index], None if labels is None else labels[index]
        for _ in range(draws):
            noise = normal_like(clean, generator)
            noisy = clean + level * noise
            with torch.no_grad():
                guess = denoiser(noisy, level, known)
            straight = linear(noisy, known)
            beyond = (guess - noisy).flatten(1).double() / level**2 - straight
            squares += beyond.T @ beyond / count
            products += beyond.T @ (noise.flatten(1).double() / -level - straight) / count
            error += float((guess - clean).square().sum()) / (count * size)
    return ScoreMoments(linear.information, squares, products, error)


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


HELD_OUT = 5
"""One sample in so many is kept back, to measure on."""


@dataclass(frozen=True)
class LearnedPriors:
    """A denoiser and samples that it was not trained on: a `LearnedPrior` for each noise level.

    >>> from gradveil.denoising import Denoiser
    >>> samples = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    >>> denoiser = Denoiser.fit(samples[:32], steps=5, generator=torch.Generator().manual_seed(1))
    >>> type(LearnedPriors(denoiser, samples[32:])).__name__
    'LearnedPriors'
    """

    denoiser: Denoiser
    samples: Tensor
    labels: Tensor | None = None

    def __post_init__(self) -> None:
        check_samples(self.samples, self.labels)

    @classmethod
    def fit(
        cls,
        samples: Tensor,
        labels: Tensor | None = None,
        *,
        steps: int = 2000,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> "LearnedPriors":
        """Train a denoiser on four fifths of the samples and keep the rest to measure on.

        Args:
            samples: Public examples.
            labels: Their classes, where the attacker is told them.
            steps: Of the training.
            generator: Of everything random.
            progress: Called with (step, steps, loss).
        """
        check_samples(samples, labels, least=2 * HELD_OUT)
        check_count(steps, "steps")
        generator = generator_or_fresh(generator)
        order = torch.randperm(len(samples), generator=generator).to(samples.device)
        taught, kept = order[len(samples) // HELD_OUT :], order[: len(samples) // HELD_OUT]
        known = (None, None) if labels is None else (labels[taught], labels[kept])
        denoiser = Denoiser.fit(
            samples[taught], known[0], steps=steps, generator=generator, progress=progress
        )
        return cls(denoiser, samples[kept], known[1])

    def at(
        self, level: float, *, draws: int = 8, generator: torch.Generator | None = None
    ) -> LearnedPrior:
        """The prior at noise τ, brought into the range that the denoiser was trained for."""
        low, high = self.denoiser.levels
        return LearnedPrior.measure(
            self.denoiser,
            self.samples,
            self.labels,
            level=min(max(level, low), high),
            draws=draws,
            generator=generator,
        )

    def covering(
        self, cases: Sequence[BoundCase], generator: torch.Generator | None = None
    ) -> LearnedPrior:
        """The prior for what these batches tell: at noise 1 / √λ, λ the largest eigenvalue of J_D.

        With less noise it is valid, too, and its bound smaller; with more it is not.
        """
        generator = generator_or_fresh(generator)
        largest = largest_information(cases, generator)
        return self.at(largest**-0.5 if largest > 0 else float("inf"), generator=generator)
