"""The two forms of the bound, and the ways to compute them."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradveil._random import rademacher_like
from gradveil._solve import conjugate_gradients
from gradveil.sensitivity import measure

from ._fisher import MeanInformation, fisher_trace
from ._plan_leak import plan_information, plan_information_trace
from ._priors import GaussianPrior

if TYPE_CHECKING:
    from gradveil.defenses import Defense


def trace_bound(
    information: MeanInformation,
    prior: GaussianPrior | None,
    planned_by: "Defense | None",
    probes: int,
    generator: torch.Generator,
    exact_limit: int,
) -> tuple[float, float]:
    """m² / (tr J_D + tr J_P): Cauchy's inequality on the eigenvalues of the full bound.

    tr J_D is exact for small inputs and estimated for large ones, the plan's part always; their
    standard error is carried over to first order.
    """
    m = information.size
    trace, error = _data_trace(information, probes, generator, exact_limit)
    trace += prior.trace(m) if prior else 0.0
    if planned_by is not None:
        leak, leak_error = _plan_trace(information, planned_by, probes, generator)
        trace, error = trace + leak, (error**2 + leak_error**2) ** 0.5
    total = m**2 / trace if trace > 0 else float("inf")
    return total, (0.0 if error == 0 else total * error / trace)


def _data_trace(
    information: MeanInformation, probes: int, generator: torch.Generator, exact_limit: int
) -> tuple[float, float]:
    """tr J_D, and its standard error where it is the mean of vᵀ J_D v over random signs v."""
    if information.size <= exact_limit:
        traces = [
            fisher_trace(measure(one.message, one.inputs, "exact"), one.mechanism)
            for one in information.parts
        ]
        return sum(traces) / len(traces), 0.0
    signs = _signs(information, probes, generator)
    return _mean_and_error((signs * information(signs)).sum(1))


def _plan_trace(
    information: MeanInformation, planned_by: "Defense", probes: int, generator: torch.Generator
) -> tuple[float, float]:
    leaks = [
        plan_information_trace(one.message, one.inputs, planned_by, probes, generator)
        for one in information.parts
    ]
    count = len(leaks)
    return (
        sum(leak for leak, _ in leaks) / count,
        sum(error**2 for _, error in leaks) ** 0.5 / count,
    )


def dense_bound(
    information: MeanInformation, prior: GaussianPrior | None, planned_by: "Defense | None"
) -> float:
    """tr (J_D + J_P)⁻¹ from the eigenvalues; infinite where a direction is left unseen."""
    matrix = information.matrix()
    if planned_by is not None:
        leaks = [plan_information(one.message, one.inputs, planned_by) for one in information.parts]
        matrix = matrix + torch.stack(leaks).mean(0)
    if prior is not None:
        return _bound_with_prior(matrix, prior.matrix(information.size).to(matrix))
    eigenvalues = torch.linalg.eigvalsh(matrix)
    resolution = eigenvalues.abs().max() * len(matrix) * torch.finfo(information.dtype).eps
    if bool(eigenvalues.min() <= resolution):
        return float("inf")
    return float(eigenvalues.reciprocal().sum())


def _bound_with_prior(data: Tensor, prior: Tensor) -> float:
    """tr (J_D + K Kᵀ)⁻¹ = Σ_k ‖K⁻ᵀ v_k‖² / (1 + e_k), with e_k and v_k of K⁻¹ J_D K⁻ᵀ.

    Whitened like that, the rounding errors of a large J_D cannot drown J_P = K Kᵀ: the result is
    between 0 and the prior's own variance for any noise.
    """
    factor = torch.linalg.cholesky(prior)
    half = torch.linalg.solve_triangular(factor, data, upper=False)
    white = torch.linalg.solve_triangular(factor, half.T, upper=False)
    eigenvalues, vectors = torch.linalg.eigh((white + white.T) / 2)
    spread = torch.linalg.solve_triangular(factor.T, vectors, upper=True).square().sum(0)
    return float((spread / (1 + eigenvalues.clamp(min=0))).sum())


def iterative_bound(
    information: MeanInformation,
    prior: GaussianPrior | None,
    planned_by: "Defense | None",
    probes: int,
    generator: torch.Generator,
) -> tuple[float, float]:
    """tr A⁻¹ = E_z[zᵀ A⁻¹ z] over random signs z, each A⁻¹ z by conjugate gradients.

    The prior's covariance preconditions. An unfinished solve is below the true zᵀ A⁻¹ z, so the
    result stays a lower bound; without a prior it may never finish, which is an error.
    """
    if planned_by is not None:
        raise ValueError(
            "Parameter `planned_by` should be given only with solver='dense' or method='trace'."
            f" Found inputs of {information.size} entries with the iterative solver."
        )
    signs = _signs(information, probes, generator)

    def multiply(rows: Tensor) -> Tensor:
        product = information(rows)
        return product if prior is None else product + prior.multiply(rows)

    def precondition(rows: Tensor) -> Tensor:
        return rows if prior is None else prior.multiply(rows, inverse=True)

    solved, converged = conjugate_gradients(multiply, signs, precondition)
    if prior is None and not converged:
        raise ValueError(
            "Parameter `prior` should be given for inputs this large: without one the information"
            " is (nearly) singular and the flat bound could not be computed. Found `prior = None`."
            " Use `GaussianPrior.fit(samples)`, or method='trace'."
        )
    return _mean_and_error((signs * solved).sum(1))


def _signs(information: MeanInformation, probes: int, generator: torch.Generator) -> Tensor:
    like = torch.empty(probes, information.size, dtype=torch.float64)
    return rademacher_like(like, generator).to(information.device)


def _mean_and_error(samples: Tensor) -> tuple[float, float]:
    count = len(samples)
    error = float(samples.std()) / count**0.5 if count > 1 else float("nan")
    return float(samples.mean()), error
