"""Dense float64 answers, straight from the definitions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacrev

from gradveil import GaussianPrior
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import Message

Tensors = dict[str, Tensor]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


@dataclass(frozen=True)
class Linear:
    """y = A x of a flattened batch, cut into a matrix, a vector and a number."""

    matrix: Tensor
    """A, of shape (d, m)."""

    def __call__(self, inputs: Tensor) -> Tensors:
        values = self.matrix @ inputs.flatten()
        return {"w": values[:-4].view(-1, 2), "b": values[-4:-1], "s": values[-1]}


def linear(outputs: int = 10, inputs: int = 6, seed: int = 0) -> Linear:
    return Linear(normal(outputs, inputs, seed=seed))


def row(tensors: Tensors) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()])


def jacobian(message: Message, inputs: Tensor) -> Tensor:
    """∂g_i/∂x_j, shape (d, m), in reverse mode (the library works in forward mode)."""
    parts = jacrev(message)(inputs)
    return torch.cat([part.reshape(-1, inputs.numel()) for part in parts.values()])


def dense_information(message: Message, inputs: Tensor, mechanism: AnyMechanism) -> Tensor:
    """Σ_i w_i ∇g_i ∇g_iᵀ."""
    weights = row(mechanism.information(message(inputs)))
    rows = jacobian(message, inputs)
    return rows.T @ (weights[:, None] * rows)


def batch_precision(prior: GaussianPrior, size: int) -> Tensor:
    """J_P of a batch with `size` entries in all: that of one example for each."""
    return torch.block_diag(*[prior.precision] * (size // len(prior.precision)))


def spread_prior(size: int = 3, seed: int = 5) -> GaussianPrior:
    """A covariance with eigenvalues over three decades, as images have."""
    directions = torch.linalg.qr(normal(size, size, seed=seed))[0]
    eigenvalues = torch.logspace(1, -2, size, dtype=torch.float64)
    covariance = (directions * eigenvalues) @ directions.T
    return GaussianPrior(normal(size, seed=seed + 1), (covariance + covariance.T) / 2)


def log_variances(
    message: Message, inputs: Tensor, scale: float, clip: float = float("inf")
) -> Callable[[Tensor], Tensor]:
    """x ↦ log Σ_ii(x) of optimal noise, from Eq. 10 (or 16) alone, for the entries that get any."""

    def levels(x: Tensor) -> Tensor:
        values = row(message(x)).abs()
        return jacobian(message, x).norm(dim=1) * (values < clip) / values

    noisy = levels(inputs) > 0  # where the gradient is 0, so is what it reveals

    def function(x: Tensor) -> Tensor:
        ratios = levels(x)
        power = scale**2 * len(ratios)
        return (power * ratios[noisy] / ratios[noisy].sum()).log()

    return function


@contextmanager
def global_generator_untouched() -> Iterator[None]:
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)
