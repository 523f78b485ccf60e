"""The prior that a denoiser gives: how sharply examples are known, at some noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradveil._checks import WrongValue, check_callable, check_inputs, check_positive
from gradveil._random import generator_or_fresh, normal_like
from gradveil.theory import BoundCase, GaussianPrior, Prior, largest_information

from ._denoiser import Denoiser, Progress, check_samples

DRAWS = 8
"""How often each sample gets noise."""


def _linear_score(
    samples: Tensor, labels: Tensor | None, level: float
) -> tuple[Tensor, Callable[[Tensor, Tensor | None], Tensor]]:
    """(C + τ²)⁻¹, C the samples' covariance (within classes), and ℓ(z) = -(C + τ²)⁻¹ (z - μ).

    That is the best linear score, with μ of the class where labels are told.
    """
    prior = GaussianPrior.fit(samples, labels=labels)
    smoothed = prior.covariance + level**2 * torch.eye(len(prior.covariance)).to(prior.mean)
    information = torch.cholesky_inverse(torch.linalg.cholesky(smoothed))
    means = prior.mean[None]
    if labels is not None:
        flat, count = samples.flatten(1).double(), int(labels.max()) + 1
        sums = flat.new_zeros(count, flat.shape[1]).index_add_(0, labels.to(flat.device), flat)
        numbers = torch.bincount(labels.to(flat.device), minlength=count).clamp(min=1)
        means = sums / numbers[:, None]

    def score(noisy: Tensor, known: Tensor | None) -> Tensor:
        own = means[0] if known is None else means[known.to(means.device)]
        return (own - noisy.flatten(1).double()) @ information

    return information, score


def score_information(
    denoiser: "Denoise",
    samples: Tensor,
    labels: Tensor | None,
    level: float,
    generator: torch.Generator,
) -> tuple[Tensor, float]:
    """J_P = E[s sᵀ] at z = x + τn as far as a learned score ŝ = (D(z) - z) / τ² shows it.

    The true score is s = ℓ + q, where q has nothing in common with any linear function of z, so
    J_P = (C + τ²)⁻¹ + E[q qᵀ]. What is learned of q is r = ŝ - ℓ, with the moments M = E[r rᵀ] and
    A = E[r (t - ℓ)ᵀ] = E[r qᵀ], t = -n / τ having the mean s given z. By Cauchy's inequality
    tr(P E[q qᵀ]) ≥ tr(P A)² / tr(P M) for every projection P, with equality where r is proportional
    to q. P runs over 16 bands of eigenvectors of M; within a band the eigenvalues are M's, times
    (tr(P A) / tr(P M))². In the mean over many entries A is known well; entry by entry it is not,
    for t is mostly noise. J_P is at most 1 / τ². It is never more than there is but for chance.

    Returns J_P, and E‖D(z) - x‖² per entry.
    """
    known, linear = _linear_score(samples, labels, level)
    size = samples[0].numel()
    squares, products = torch.zeros(2, size, size, dtype=torch.float64, device=samples.device)
    error, count = 0.0, DRAWS * len(samples)
    for index in torch.arange(len(samples)).split(256):
        clean, told = samples[index], None if labels is None else labels[index]
        for _ in range(DRAWS):
            noise = normal_like(clean, generator)
            noisy = clean + level * noise
            with torch.no_grad():
                guess = denoiser(noisy, level, told)
            straight = linear(noisy, told)
            beyond = (guess - noisy).flatten(1).double() / level**2 - straight
            squares += beyond.T @ beyond / count
            products += beyond.T @ (noise.flatten(1).double() / -level - straight) / count
            error += float((guess - clean).square().sum()) / (count * size)
    values, vectors = torch.linalg.eigh(squares)
    shown = ((vectors.T @ products) * vectors.T).sum(1)
    bands = torch.arange(len(values)).tensor_split(min(16, len(values)))
    totals = torch.stack([values[band].sum() for band in bands])
    learned = torch.stack([shown[band].sum() for band in bands]) / totals
    learned = torch.where(totals > 0, learned, 0.0).clamp(min=0)  # 0 where nothing was
    factors = [share.expand(len(band)) for share, band in zip(learned, bands, strict=True)]
    beyond = (vectors * (values.clamp(min=0) * torch.cat(factors).square())) @ vectors.T
    values, vectors = torch.linalg.eigh(known + beyond)
    matrix: Tensor = (vectors * values.clamp(max=level**-2)) @ vectors.T
    return (matrix + matrix.T) / 2, error


Denoise = Callable[[Tensor, float, Tensor | None], Tensor]
"""From examples with noise, its level and their labels to guesses of the examples."""


@dataclass(frozen=True)
class LearnedPrior(Prior):
    """What a denoiser D knows of examples x, from its error on x_τ = x + τ n, n ~ N(0, I).

    The score of x_τ is s(z) = (E[x | z] - z) / τ² (Tweedie's formula), and its information is

        J_τ = E[s sᵀ] = I / τ² - E[Cov(x | x_τ)] / τ⁴,   tr J_τ = n / τ² - MMSE(τ) / τ⁴.

    Pixels with atoms (a black border) have infinite information; with noise they have 1 / τ². The
    bound is tr (J_D + K⁻¹)⁻¹ with K = J_τ⁻¹ - τ². The Gaussian of covariance K has the error of the
    examples at noise τ, and a smaller one at more noise: their curves cross once (Guo, Wu, Shamai
    and Verdú, 2011). So it holds where the message tells at most as much as x_τ does,
    J_D ≤ I / τ² (`largest`), and is nearly linear.

    For Gaussian examples K is their covariance, and the bound is exact. A learned D has a larger
    error than the best one, so that it shows too little of J_τ: **bounds with this prior err
    upwards**. A better denoiser can only lower them; they are never above those of the fitted
    Gaussian.

    >>> LearnedPrior(torch.eye(3), level=0.5).level
    0.5
    """

    information: Tensor
    """J_τ of one example, shape (n, n), positive definite and at most 1 / τ²."""
    level: float
    """τ."""
    name: str = "learned"
    error: float | None = None
    """The denoiser's mean squared error per entry on held-out samples, above MMSE(τ) / n."""
    precision: Tensor = field(init=False, repr=False)
    covariance: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_inputs(self.information, "information")
        check_positive(self.level, "level")
        shape = self.information.shape
        if len(shape) != 2 or shape[0] != shape[1]:
            raise WrongValue("information", "have the shape (n, n)", str(tuple(shape)))
        values, vectors = torch.linalg.eigh(self.information.double())
        if not 0 < float(values.min()) <= float(values.max()) <= 1.001 * self.level**-2:
            found = f"eigenvalues from {float(values.min()):.3g} to {float(values.max()):.3g}"
            expected = "be positive definite and at most 1 / level²"
            raise WrongValue("information", expected, found, "Take more samples or draws.")
        known = values.reciprocal() - self.level**2
        known = known.clamp(min=1e-10 * float(known.max()))  # no direction is known for sure
        object.__setattr__(self, "covariance", (vectors * known) @ vectors.T)
        object.__setattr__(self, "precision", (vectors / known) @ vectors.T)

    @property
    def largest(self) -> float:
        """Of the information of a message in any direction, where the bound holds."""
        return self.level**-2

    @classmethod
    def measure(
        cls,
        denoiser: Denoise,
        samples: Tensor,
        labels: Tensor | None = None,
        *,
        level: float,
        generator: torch.Generator | None = None,
    ) -> "LearnedPrior":
        """J_τ from what a denoiser does to samples that it was not trained on.

        Args:
            denoiser: A `Denoiser`, or any function of (noisy examples, level, labels).
            samples: Held-out examples: eight times as many should be several for each entry.
            labels: Their classes, where the attacker is told them.
            level: τ. For a message of information J_D: 1 / √λ, λ the largest eigenvalue.
        """
        check_callable(denoiser, "denoiser", "Use `Denoiser.fit(samples)`.")
        check_samples(samples, labels)
        check_positive(level, "level")
        low, high = denoiser.levels if isinstance(denoiser, Denoiser) else (0.0, torch.inf)
        if not low <= level <= high:
            expected = f"be one that the denoiser was trained for, from {low:.3g} to {high:.3g}"
            raise WrongValue("level", expected, f"{level:.3g}", "Choose one of these.")
        level, generator = float(level), generator_or_fresh(generator)
        found, error = score_information(denoiser, samples, labels, level, generator)
        within = "" if labels is None else " within classes"
        name = (
            f"learned{within}: a denoiser whose error at noise {level:.3g} is {error:.3g} per entry"
            f" on {len(samples)} held-out samples (not the least possible, so the bound errs"
            " upwards)"
        )
        return cls(found, level, name, error)


@dataclass(frozen=True)
class LearnedPriors:
    """A denoiser and samples that it was not trained on: a `LearnedPrior` for each noise level.

    >>> samples = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    >>> len(LearnedPriors.fit(samples, steps=5, generator=torch.Generator().manual_seed(1)).samples)
    12
    """

    denoiser: Denoiser
    samples: Tensor
    labels: Tensor | None = None

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
        """`Denoiser.fit` on four fifths of the samples; the rest is kept to measure on."""
        check_samples(samples, labels, least=10)
        generator = generator_or_fresh(generator)
        order = torch.randperm(len(samples), generator=generator).to(samples.device)
        kept, taught = order.tensor_split([len(samples) // 5])
        known, others = (None, None) if labels is None else (labels[taught], labels[kept])
        denoiser = Denoiser.fit(
            samples[taught], known, steps=steps, generator=generator, progress=progress
        )
        return cls(denoiser, samples[kept], others)

    def at(self, level: float, generator: torch.Generator | None = None) -> LearnedPrior:
        """The prior at noise τ, brought into the range that the denoiser was trained for."""
        low, high = self.denoiser.levels
        level, known = min(max(level, low), high), (self.samples, self.labels)
        return LearnedPrior.measure(self.denoiser, *known, level=level, generator=generator)

    def covering(
        self, cases: Sequence[BoundCase], generator: torch.Generator | None = None
    ) -> LearnedPrior:
        """The prior for what these batches tell: at noise 1 / √λ, λ the largest eigenvalue of J_D.

        With less noise it is valid, too, and its bound smaller; with more it is not.
        """
        generator = generator_or_fresh(generator)
        largest = largest_information(cases, generator)
        return self.at(largest**-0.5 if largest > 0 else float("inf"), generator=generator)
