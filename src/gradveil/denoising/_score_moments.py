"""What held-out samples show of the information of a smoothed population."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._random import normal_like

from ._linear_score import LinearScore

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
