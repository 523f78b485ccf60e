"""What an attacker knows of the data before it sees a message."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradveil._checks import check_count, check_inputs, check_not_negative, check_tensor
from gradveil._random import generator_or_fresh

from ._prior import Prior

ROUNDING = 1e-10
"""What `fit` adds to the variance of each direction, over the norm of the covariance: enough to
invert it in float64, and too little to show in a bound."""


@dataclass(frozen=True)
class GaussianPrior(Prior):
    """Each example is N(mean, covariance), independently of the others.

    Of all distributions with this covariance the Gaussian has the smallest prior information
    J_P = covariance⁻¹. Real data carry more: an attacker that knows more than mean and covariance
    (smooth images, a generative model) can go below a bound that assumes this prior. So for real
    data the bound is a Gaussian reference error, that of the best linear estimate, no guarantee.

    Args:
        mean: Shape (n,), n being the number of entries of one example.
        covariance: Shape (n, n), positive definite.
        name: How a bound refers to it.

    >>> samples = torch.tensor([[0.0, 1.0], [2.0, 1.0], [1.0, 4.0]])
    >>> GaussianPrior.fit(samples).mean
    tensor([1., 2.], dtype=torch.float64)
    """

    mean: Tensor
    covariance: Tensor
    name: str = "Gaussian"
    precision: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("mean", "covariance"):
            check_tensor(getattr(self, name), name)
        n = self.mean.numel()
        if self.mean.dim() != 1 or self.covariance.shape != (n, n):
            raise ValueError(
                "Parameters `mean` and `covariance` should have the shapes (n,) and (n, n). Found"
                f" {tuple(self.mean.shape)} and {tuple(self.covariance.shape)}."
            )
        check_inputs(self.mean, "mean")
        check_inputs(self.covariance, "covariance")
        if not torch.allclose(self.covariance, self.covariance.T, rtol=1e-4):
            raise ValueError(
                "Parameter `covariance` should be symmetric. Found entries that differ by"
                f" {float((self.covariance - self.covariance.T).abs().max()):.3g} across the"
                " diagonal."
            )
        factor, failed = torch.linalg.cholesky_ex(self.covariance.double())
        if bool(failed):
            raise ValueError(
                "Parameter `covariance` should be positive definite. Found that it is not. Add a"
                " small multiple of the identity (`ridge` of `GaussianPrior.fit`)."
            )
        object.__setattr__(self, "precision", torch.cholesky_inverse(factor))

    @classmethod
    def fit(
        cls, samples: Tensor, ridge: float = 0.0, *, labels: Tensor | None = None
    ) -> "GaussianPrior":
        """Mean and covariance of the samples; without labels they claim no more than these show.

        tr (J_D + C⁻¹)⁻¹ is concave in C. So with the covariance of finitely many samples the bound
        is, in the mean over samples, below that with the covariance of the population, and equal
        to it for many. Directions in which the samples do not vary add nothing to it.

        Args:
            samples: Examples first.
            ridge: Added to the variance of every direction. It makes the bound larger than the
                data show; an attacker's search may need one to be well conditioned.
            labels: A class for each sample, where the attacker is told the labels: the covariance
                is then that within classes, around the mean of each, pooled. Where classes differ
                in their covariance the bound is larger with the pooled one than in the mean over
                classes, by the same concavity: it then errs upwards.
        """
        check_inputs(samples, "samples")
        check_not_negative(ridge, "ridge")
        if len(samples) < 2 or samples.dim() < 2:
            raise ValueError(
                "Parameter `samples` should hold at least 2 examples, of shape (N, ...). Found"
                f" `samples.shape = {tuple(samples.shape)}`."
            )
        flat = samples.flatten(1).double()
        around, classes = (flat.mean(0), 1) if labels is None else _class_means(flat, labels)
        covariance = (flat - around).T @ (flat - around) / (len(flat) - classes)
        covariance.diagonal().add_(ridge + ROUNDING * float(covariance.norm()))
        within = "" if labels is None else " within classes"
        return cls(flat.mean(0), covariance, f"Gaussian{within} fitted to {len(flat)} samples")

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw examples, shape (count, n)."""
        check_count(count, "count")
        generator = generator_or_fresh(generator)
        factor = self.root
        drawn = torch.empty(count, len(factor), dtype=factor.dtype, device=generator.device)
        noise = drawn.normal_(generator=generator).to(factor.device)
        return torch.add(self.mean, noise @ factor.T)


def _class_means(samples: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """The mean of its class for each sample, and the number of classes."""
    check_tensor(labels, "labels")
    if labels.shape != (len(samples),):
        raise ValueError(
            f"Parameter `labels` should hold one class for each of {len(samples)} samples. Found"
            f" `labels.shape = {tuple(labels.shape)}`."
        )
    _, index, counts = labels.to(samples.device).unique(return_inverse=True, return_counts=True)
    if len(counts) >= len(samples):
        raise ValueError(
            "Parameter `labels` should have classes of several samples. Found"
            f" {len(counts)} classes of {len(samples)} samples. Leave it out, or give more samples."
        )
    sums = samples.new_zeros(len(counts), samples.shape[1]).index_add_(0, index, samples)
    return (sums / counts.unsqueeze(1))[index], len(counts)
