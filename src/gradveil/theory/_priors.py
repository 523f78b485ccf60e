"""What an attacker knows of the data before it sees a message."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradveil._checks import check_count, check_inputs, check_not_negative, check_tensor
from gradveil._random import generator_or_fresh


@dataclass(frozen=True)
class GaussianPrior:
    """Each example is N(mean, covariance), independently of the others.

    Of all distributions with this covariance the Gaussian has the smallest prior information
    J_P = covariance⁻¹. Real data carry more: an attacker that knows more than mean and covariance
    (smooth images, a generative model) can go below a bound that assumes this prior.

    Args:
        mean: Shape (n,), n being the number of entries of one example.
        covariance: Shape (n, n), positive definite.
        name: How a bound refers to it.
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
    def fit(cls, samples: Tensor, ridge: float = 0.01) -> "GaussianPrior":
        """Mean and covariance of the samples (examples first), `ridge` added to the diagonal."""
        check_inputs(samples, "samples")
        check_not_negative(ridge, "ridge")
        if len(samples) < 2 or samples.dim() < 2:
            raise ValueError(
                "Parameter `samples` should hold at least 2 examples, of shape (N, ...). Found"
                f" `samples.shape = {tuple(samples.shape)}`."
            )
        flat = samples.flatten(1).double()
        identity = torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device)
        covariance = torch.atleast_2d(torch.cov(flat.T)) + ridge * identity
        return cls(flat.mean(0), covariance, f"Gaussian fitted to {len(flat)} samples")

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw examples, shape (count, n)."""
        check_count(count, "count")
        generator = generator_or_fresh(generator)
        factor = torch.linalg.cholesky(self.covariance.double())
        drawn = torch.empty(count, len(factor), dtype=factor.dtype, device=generator.device)
        noise = drawn.normal_(generator=generator).to(factor.device)
        return torch.add(self.mean, noise @ factor.T)

    def matrix(self, size: int) -> Tensor:
        """J_P of a batch with `size` entries in all: the precision, once for each example."""
        blocks: Tensor = torch.block_diag(*[self.precision] * self._examples(size))
        return blocks

    def trace(self, size: int) -> float:
        """tr J_P of a batch with `size` entries in all."""
        return float(self.precision.trace()) * self._examples(size)

    def multiply(self, rows: Tensor, inverse: bool = False) -> Tensor:
        """J_P v, or J_P⁻¹ v, for each row v of a (k, size) tensor."""
        matrix = self.covariance if inverse else self.precision
        self._examples(rows.shape[-1])
        return (rows.view(-1, len(self.mean)) @ matrix.to(rows)).view_as(rows)

    def check_examples(self, inputs: Tensor) -> None:
        """Require that the prior is one of such examples."""
        if inputs[0].numel() != len(self.mean):
            raise ValueError(
                "Parameter `prior` should be of examples with the shape of the inputs'. Found a"
                f" prior of {len(self.mean)} entries and `inputs.shape = {tuple(inputs.shape)}`."
                " Fit it to such examples."
            )

    def _examples(self, size: int) -> int:
        n = len(self.mean)
        if size % n:
            raise ValueError(
                "Parameter `prior` should be of examples with the shape of the inputs'. Found a"
                f" prior of {n} entries for inputs of {size} in all. Fit it to such examples."
            )
        return size // n
