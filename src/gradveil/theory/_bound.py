"""Lower bounds on the error of every reconstruction (Theorem 1, as corrected in docs/theory.md)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradveil._checks import (
    check_choice,
    check_count,
    check_inputs,
    check_kind,
    check_methods,
)
from gradveil._random import generator_or_fresh, rademacher_like
from gradveil.mechanisms import AnyMechanism, Mechanism, check_mechanism
from gradveil.messages import Message, check_message
from gradveil.sensitivity import measure

from ._fisher import FisherInformation, fisher_trace
from ._plan_leak import plan_information, plan_information_trace
from ._priors import GaussianPrior
from ._solve import conjugate_gradients

if TYPE_CHECKING:
    from gradveil.defenses import Defense

DENSE_LIMIT = 1024
"""Up to how many input entries the full bound is computed with the dense matrix."""


@dataclass(frozen=True)
class Bound:
    """No attacker's mean squared error over data of that prior is below this."""

    total: float
    """On E‖x̂ - x‖², summed over all m entries of the inputs."""
    per_entry: float
    """The same for one entry: `total` / m, to compare with the MSE that attacks report."""
    method: str
    """"full": tr (J_D + J_P)⁻¹. "trace": m² / (tr J_D + tr J_P), never larger."""
    standard_error: float
    """Of `total`, where it was estimated with random probes; 0 where it was computed."""
    prior: str
    """The prior it holds for. Under "flat" it is no guarantee: no real data are flat."""
    counts_plan: bool
    """Whether it counts what a plan made from the private batch reveals by itself."""


def reconstruction_bound(
    message: Message,
    inputs: Tensor,
    mechanism: AnyMechanism,
    prior: GaussianPrior | None = None,
    method: str = "full",
    *,
    plan: "Defense | None" = None,
    solver: str = "auto",
    probes: int = 16,
    generator: torch.Generator | None = None,
) -> Bound:
    """The Bayesian Cramér-Rao bound on the error of any reconstruction from what is sent.

    The Fisher information is that at `inputs`, which stand for the data distribution.

    Args:
        message: What the client would send undefended.
        inputs: The batch at which the information is evaluated.
        mechanism: What is done to the message.
        prior: What the attacker knows beforehand; `None` is flat, which is no guarantee: with much
            noise that bound exceeds what guessing the mean of the data achieves.
        method: "full" (tight) or "trace" (looser, needs only sensitivities; the form for which
            the defenses are optimal).
        plan: The defense that planned the mechanism from these very inputs. Counts the
            information in the noise levels, ½ Σ_i ∇log Σ_ii ∇log Σ_iiᵀ (erratum 5). Leave it
            out for plans made from other data, which reveal nothing of this batch. What a mask
            or a clamped set reveals by its choice is not counted: `counts_plan` is then False.
        solver: Of the full bound: "dense", "iterative" (matrix-free: conjugate gradients with
            random probes, a standard error beside it), or "auto" by the size of the inputs.
        probes: How many random probes the stochastic estimates take.
        generator: For those probes.
    """
    check_message(message)
    check_inputs(inputs)
    check_mechanism(mechanism)
    check_choice(method, "method", ("full", "trace"))
    check_choice(solver, "solver", ("auto", "dense", "iterative"))
    check_count(probes, "probes")
    if prior is not None:
        check_kind(prior, "prior", GaussianPrior, "Use `GaussianPrior.fit(samples)`.")
        prior.check_examples(inputs)
    if plan is not None:
        check_methods(plan, "plan", ("plan", "observe"), "`OptimalNoise(scale=0.1)`")
    generator = generator_or_fresh(generator)
    if method == "trace":
        total, error = _trace_bound(message, inputs, mechanism, prior, plan, probes, generator)
    else:
        information = FisherInformation(message, inputs, mechanism)
        dense = solver == "dense" or (solver == "auto" and inputs.numel() <= DENSE_LIMIT)
        if information.is_infinite():
            total, error = 0.0, 0.0
        elif dense:
            total, error = _dense_bound(information, prior, plan), 0.0
        else:
            total, error = _iterative_bound(information, prior, plan, probes, generator)
    return Bound(
        total=total,
        per_entry=total / inputs.numel(),
        method=method,
        standard_error=error,
        prior="flat" if prior is None else prior.name,
        counts_plan=plan is not None and not _selects(mechanism),
    )


def _selects(mechanism: AnyMechanism) -> bool:
    """Whether the plan chose entries to prune or clamp, which tells of the inputs by itself."""
    if not isinstance(mechanism, Mechanism) or mechanism.clip is not None:
        return True
    keep = mechanism.keep
    levels = keep.values() if isinstance(keep, Mapping) else ([] if keep is None else [keep])
    return any(bool((torch.as_tensor(level) < 1).any()) for level in levels)


def _trace_bound(
    message: Message,
    inputs: Tensor,
    mechanism: AnyMechanism,
    prior: GaussianPrior | None,
    plan: "Defense | None",
    probes: int,
    generator: torch.Generator,
) -> tuple[float, float]:
    """m² / (tr J_D + tr J_P): Cauchy's inequality on the eigenvalues of the full bound.

    tr J_D is exact for small inputs and estimated for large ones, the plan's part always; their
    standard error is carried over to first order.
    """
    m = inputs.numel()
    trace, error = _data_trace(message, inputs, mechanism, probes, generator)
    trace += prior.trace(m) if prior else 0.0
    if plan is not None:
        leak, leak_error = plan_information_trace(message, inputs, plan, probes, generator)
        trace, error = trace + leak, (error**2 + leak_error**2) ** 0.5
    total = m**2 / trace if trace > 0 else float("inf")
    return total, (0.0 if error == 0 else total * error / trace)


def _data_trace(
    message: Message,
    inputs: Tensor,
    mechanism: AnyMechanism,
    probes: int,
    generator: torch.Generator,
) -> tuple[float, float]:
    """tr J_D, and its standard error where it is the mean of vᵀ J_D v over random signs v."""
    if inputs.numel() <= DENSE_LIMIT:
        return fisher_trace(measure(message, inputs, "exact"), mechanism), 0.0
    information = FisherInformation(message, inputs, mechanism)
    if information.is_infinite():
        return float("inf"), 0.0
    like = torch.empty(probes, information.size, dtype=torch.float64)
    signs = rademacher_like(like, generator).to(inputs.device)
    return _mean_and_error((signs * information(signs)).sum(1))


def _dense_bound(
    information: FisherInformation, prior: GaussianPrior | None, plan: "Defense | None"
) -> float:
    """tr (J_D + J_P)⁻¹ from the eigenvalues; infinite where a direction is left unseen."""
    matrix = information.matrix()
    if plan is not None:
        matrix = matrix + plan_information(information.message, information.inputs, plan)
    if prior is not None:
        return _bound_with_prior(matrix, prior.matrix(information.size).to(matrix))
    eigenvalues = torch.linalg.eigvalsh(matrix)
    resolution = eigenvalues.abs().max() * len(matrix) * torch.finfo(information.inputs.dtype).eps
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


def _iterative_bound(
    information: FisherInformation,
    prior: GaussianPrior | None,
    plan: "Defense | None",
    probes: int,
    generator: torch.Generator,
) -> tuple[float, float]:
    """tr A⁻¹ = E_z[zᵀ A⁻¹ z] over random signs z, each A⁻¹ z by conjugate gradients.

    The prior's covariance preconditions. An unfinished solve is below the true zᵀ A⁻¹ z, so the
    result stays a lower bound; without a prior it may never finish, which is an error.
    """
    if plan is not None:
        raise ValueError(
            "Parameter `plan` should be given only with solver='dense' or method='trace'. Found"
            f" inputs of {information.size} entries with the iterative solver."
        )
    like = torch.empty(probes, information.size, dtype=torch.float64)
    signs = rademacher_like(like, generator).to(information.inputs.device)

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


def _mean_and_error(samples: Tensor) -> tuple[float, float]:
    count = len(samples)
    error = float(samples.std()) / count**0.5 if count > 1 else float("nan")
    return float(samples.mean()), error
