"""The best linear guess of a score: that of a Gaussian around the mean of each class."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil.theory import GaussianPrior


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
