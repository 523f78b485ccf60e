"""What an attacker knows beforehand: Gaussian priors of the inputs."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gradveil._checks import WrongValue, check_count, check_inputs, check_not_negative, check_tensor
from gradveil._random import generator_or_fresh, normal_like


class Prior:
    """What is known of each example beforehand, by its information J_P, independently of others."""

    name: str
    """How a bound refers to it."""
    precision: Tensor
    """J_P of one example, shape (n, n), float64."""
    covariance: Tensor
    """Its inverse: for a Gaussian the covariance, for all other priors less than that."""

    @property
    def spec_words(self) -> str:
        """In specifications, which hold no samples."""
        return self.name

    @property
    def largest(self) -> float:
        """The most that a message may tell of any direction for a bound with this prior to hold.

        Where it is finite the bound follows from errors that cross, not from a density: it is place
        by place, and says nothing of errors after matching.
        """
        return float("inf")

    @cached_property
    def root(self) -> Tensor:
        """L with covariance = L Lᵀ, lower triangular, float64."""
        factor: Tensor = torch.linalg.cholesky(self.covariance.double())
        return factor

    @cached_property
    def variances(self) -> Tensor:
        """The eigenvalues of the covariance, the largest first, float64."""
        values: Tensor = torch.linalg.eigvalsh(self.covariance.double()).flip(0)
        return values.clamp(min=torch.finfo(torch.float64).tiny)

    def leading(self, size: int, trace: float, choice: float = 0.0) -> tuple[int, float]:
        """kB and B Σ_{i≤k} 1/λ_i of the k for which the bound on their error alone is largest.

        For the k leading directions of each of B examples, `size` entries in all, the error is at
        least (kB)² / (tr J_D + B Σ_{i≤k} 1/λ_i); exp(-2 choice / kB) of that, where the errors'
        order may tell `choice` nats. All directions are the usual trace form, which a single
        direction without variance would turn into 0.
        """
        entries, known = self._leading_traces(size)
        errors = entries.square() / (trace + known) * (-2 * choice / entries).exp()
        best = int(errors.argmax())
        return int(entries[best]), float(known[best])

    def allowed_trace(self, size: int, total: float) -> float:
        """The largest tr J_D at which the trace form is `total`; not above 0 if there is none."""
        entries, known = self._leading_traces(size)
        return float((entries.square() / total - known).max())

    def _leading_traces(self, size: int) -> tuple[Tensor, Tensor]:
        examples = self._examples(size)
        known = examples * self.variances.reciprocal().cumsum(0)
        count = torch.arange(1, len(known) + 1, dtype=known.dtype, device=known.device)
        return examples * count, known

    def from_white(self, rows: Tensor, transposed: bool = False) -> Tensor:
        """L v, or Lᵀ v, of each example in each row v of a (k, size) tensor."""
        matrix = self.root if transposed else self.root.T
        self._examples(rows.shape[-1])
        return (rows.reshape(-1, len(self.precision)) @ matrix.to(rows)).view(rows.shape)

    def check_examples(self, inputs: Tensor) -> None:
        """Require that the prior is one of such examples."""
        if inputs[0].numel() != len(self.precision):
            raise self._misfit(f"`inputs.shape = {tuple(inputs.shape)}`")

    def _examples(self, size: int) -> int:
        if size % len(self.precision):
            raise self._misfit(f"inputs of {size} in all")
        return size // len(self.precision)

    def _misfit(self, inputs: str) -> WrongValue:
        found = f"a prior of {len(self.precision)} entries and {inputs}"
        expected = "be of examples with the shape of the inputs'"
        return WrongValue("prior", expected, found, "Fit it to such examples.")


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

    >>> samples = torch.tensor([[0.0, 1.0], [2.0, 1.0], [1.0, 4.0]])
    >>> GaussianPrior.fit(samples).mean
    tensor([1., 2.], dtype=torch.float64)
    """

    mean: Tensor
    covariance: Tensor
    name: str = "Gaussian"
    precision: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_inputs(self.mean, "mean")
        check_inputs(self.covariance, "covariance")
        n = self.mean.numel()
        if self.mean.dim() != 1 or self.covariance.shape != (n, n):
            raise ValueError(
                "Parameters `mean` and `covariance` should have the shapes (n,) and (n, n). Found"
                f" {tuple(self.mean.shape)} and {tuple(self.covariance.shape)}."
            )
        if not torch.allclose(self.covariance, self.covariance.T, rtol=1e-4):
            most = float((self.covariance - self.covariance.T).abs().max())
            found = f"entries that differ by {most:.3g} across the diagonal"
            raise WrongValue("covariance", "be symmetric", found)
        factor, failed = torch.linalg.cholesky_ex(self.covariance.double())
        if bool(failed):
            advice = "Add a small multiple of the identity (`ridge` of `GaussianPrior.fit`)."
            raise WrongValue("covariance", "be positive definite", "that it is not", advice)
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
            found = f"`samples.shape = {tuple(samples.shape)}`"
            raise WrongValue("samples", "hold at least 2 examples, of shape (N, ...)", found)
        flat = samples.flatten(1).double()
        around, classes = (flat.mean(0), 1) if labels is None else _class_means(flat, labels)
        covariance = (flat - around).T @ (flat - around) / (len(flat) - classes)
        # enough to invert it in float64, and too little to show in a bound
        covariance.diagonal().add_(ridge + 1e-10 * float(covariance.norm()))
        within = "" if labels is None else " within classes"
        return cls(flat.mean(0), covariance, f"Gaussian{within} fitted to {len(flat)} samples")

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw examples, shape (count, n)."""
        check_count(count, "count")
        generator = generator_or_fresh(generator)
        blank = self.root.new_empty(()).expand(count, len(self.root))
        return torch.add(self.mean, normal_like(blank, generator) @ self.root.T)


def _class_means(samples: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """The mean of its class for each sample, and the number of classes."""
    check_tensor(labels, "labels")
    if labels.shape != (len(samples),):
        expected = f"hold one class for each of {len(samples)} samples"
        raise WrongValue("labels", expected, f"`labels.shape = {tuple(labels.shape)}`")
    _, index, counts = labels.to(samples.device).unique(return_inverse=True, return_counts=True)
    if len(counts) >= len(samples):
        found = f"{len(counts)} classes of {len(samples)} samples"
        advice = "Leave it out, or give more samples."
        raise WrongValue("labels", "have classes of several samples", found, advice)
    sums = samples.new_zeros(len(counts), samples.shape[1]).index_add_(0, index, samples)
    return (sums / counts.unsqueeze(1))[index], len(counts)
