"""What any prior gives a bound: its information about each example."""

from functools import cached_property

import torch
from torch import Tensor


class Prior:
    """What is known of each example beforehand, by its information J_P, independently of others."""

    name: str
    """How a bound refers to it."""
    precision: Tensor
    """J_P of one example, shape (n, n), float64."""
    covariance: Tensor
    """Its inverse: for a Gaussian the covariance, for all other priors less than that."""

    @property
    def largest(self) -> float:
        """The most that a message may tell of any direction for a bound with this prior to hold."""
        return float("inf")

    def drawn(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Inputs of the population that the prior describes, made from those of the data."""
        return inputs

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

    def leading(self, size: int, trace: float) -> tuple[int, float]:
        """The directions of largest variance for which a bound on their error alone is largest.

        For the k leading directions of each of B examples the error is at least
        (kB)² / (tr J_D + B Σ_{i≤k} 1/λ_i). All directions are the usual trace form, which a single
        direction without variance would turn into 0.

        Returns:
            kB and B Σ_{i≤k} 1/λ_i of the best k.
        """
        entries, known = self._leading_traces(size)
        best = int((entries.square() / (trace + known)).argmax())
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
        return (rows.view(-1, len(self.precision)) @ matrix.to(rows)).view_as(rows)

    def from_white(self, rows: Tensor, transposed: bool = False) -> Tensor:
        """L v, or Lᵀ v, of each example in each row v of a (k, size) tensor."""
        matrix = self.root if transposed else self.root.T
        self._examples(rows.shape[-1])
        return (rows.reshape(-1, len(self.precision)) @ matrix.to(rows)).view(rows.shape)

    def check_examples(self, inputs: Tensor) -> None:
        """Require that the prior is one of such examples."""
        if inputs[0].numel() != len(self.precision):
            raise ValueError(
                "Parameter `prior` should be of examples with the shape of the inputs'. Found a"
                f" prior of {len(self.precision)} entries and"
                f" `inputs.shape = {tuple(inputs.shape)}`. Fit it to such examples."
            )

    def _examples(self, size: int) -> int:
        n = len(self.precision)
        if size % n:
            raise ValueError(
                "Parameter `prior` should be of examples with the shape of the inputs'. Found a"
                f" prior of {n} entries for inputs of {size} in all. Fit it to such examples."
            )
        return size // n
