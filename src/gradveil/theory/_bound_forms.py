"""The two forms of the bound, and the ways to compute them."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gradveil._random import named_stream, rademacher_like
from gradveil._solve import conjugate_gradients
from gradveil.sensitivity import measure

from ._fisher import MeanInformation, fisher_trace
from ._plan_leak import plan_information, plan_information_trace
from ._prior import Prior

if TYPE_CHECKING:
    from gradveil.defenses import Defense


QUANTILES = (0.025, 0.975)
RESAMPLES = 2000

BATCHES_LIMIT = 2**27
"""Up to how many numbers the matrices of all batches are held for an interval."""


class Formed(NamedTuple):
    """A bound on E‖x̂ - x‖², and how well it is known."""

    total: float
    error: float
    """The standard error of random probes."""
    interval: tuple[float, float] | None
    """From the scatter of the batches."""
    matched: float = 0.0
    """On the same after matching (`matched_error`)."""


def trace_error(trace: float, size: int, prior: Prior | None = None, *, matched: int = 1) -> float:
    """The trace form, the largest k² / (tr J_D + tr_k J_P) over leading directions k of the prior.

    For any k orthogonal directions V the errors along them are at least
    tr (Vᵀ (J_D + J_P) V)⁻¹ ≥ k² / (tr J_D + tr Vᵀ J_P V). With all of them, and for a flat prior,
    it is m² / (tr J_D + tr J_P). For errors after matching B examples each is (B!)^(-2/k) of that,
    by the steps of `matched_error` for V, and det(A)^(1/k) ≤ tr A / k.

    Args:
        trace: tr J_D.
        size: m, the entries of all inputs.
        prior: What is known of each example; `None` is flat.
        matched: B, if errors are counted after matching that many examples to the truth.

    >>> trace_error(trace=8.0, size=4)
    2.0
    """
    choice = log_orders(matched)
    entries, known = (size, 0.0) if prior is None else prior.leading(size, trace, choice)
    if trace + known <= 0:
        return float("inf")
    return math.exp(-2 * choice / entries) * entries**2 / (trace + known)


def log_orders(examples: int) -> float:
    """log B!, the most that a choice among all orders of B examples can tell, in nats."""
    return math.lgamma(examples + 1)


def matched_error(errors: Tensor, examples: int) -> float:
    """The least Σ_i D_i with Σ_i log (λ_i / D_i) ≤ 2 log B!, 0 < D_i ≤ λ_i: reverse water-filling.

    It bounds E min_π Σ_b ‖x̂_π(b) - x_b‖², the error of any attacker after the truth has chosen the
    order, from the eigenvalues λ of (J_D + J_P)⁻¹:

    1. Let v be the coordinates of x along a set S of k eigenvectors, u the others. The density of
       v_i / √λ_i given y and u has an information of k in the mean. Stam's inequality,
       h ≥ k/2 log (2πe k / information), and Jensen's give (Efroimovich, 1979)
       h(v | y) ≥ h(v | y, u) ≥ ½ Σ_S log (2πe λ_i).
    2. The order π is one of B!, whatever it is chosen by: h(v | y, π) ≥ h(v | y) - log B!.
    3. x̂ in the order π is a function of y and π. With D_i its mean squared error along direction i,
       the Gaussian's entropy being the largest, h(v | y, π) ≤ ½ Σ_S log (2πe D_i).

    So Σ_S log (λ_i / D_i) ≤ 2 log B! for every S, and for the S where D_i < λ_i in particular. One
    example has no order to choose: Σ λ_i, the full bound.

    >>> round(matched_error(torch.ones(8), examples=8) / 8, 4)
    0.0706
    """
    if examples == 1:
        return float(errors.sum())
    found = errors.double().flatten().sort(descending=True).values
    found = found.clamp(min=torch.finfo(found.dtype).tiny)
    counts = torch.arange(1, len(found) + 1, dtype=found.dtype, device=found.device)
    levels = ((found.log().cumsum(0) - 2 * log_orders(examples)) / counts).exp()
    lowered = int((found >= levels).sum())
    return float(lowered * levels[lowered - 1] + found[lowered:].sum())


def trace_bound(
    information: MeanInformation,
    prior: Prior | None,
    planned_by: "Defense | None",
    probes: int,
    generator: torch.Generator,
    exact_limit: int,
) -> Formed:
    """`trace_error` of tr J_D: Cauchy's inequality on the eigenvalues of the full bound.

    tr J_D is exact for small inputs and estimated for large ones, the plan's part always; their
    standard error is carried over to first order.
    """
    m = information.size
    traces, error = _data_traces(information, probes, generator, exact_limit)
    if planned_by is not None:
        leaks, leak_error = _plan_traces(information, planned_by, probes, generator)
        traces, error = traces + leaks, (error**2 + leak_error**2) ** 0.5
    trace = float(traces.mean())
    entries, known = (m, 0.0) if prior is None else prior.leading(m, trace)
    if trace + known <= 0:
        return Formed(float("inf"), 0.0, None, float("inf"))
    total = entries**2 / (trace + known)
    error = 0.0 if error == 0 else total * error / (trace + known)
    matched = trace_error(trace, m, prior, matched=information.examples)
    return Formed(total, error, _spread((traces + known) / entries**2), matched)


def _data_traces(
    information: MeanInformation, probes: int, generator: torch.Generator, exact_limit: int
) -> tuple[Tensor, float]:
    """tr J_F of each batch, and the standard error of their mean.

    The error is not 0 where they are means of vᵀ J_F v over random signs v.
    """
    if information.size <= exact_limit:
        traces = [
            fisher_trace(measure(one.message, one.inputs, "exact"), one.mechanism)
            for one in information.parts
        ]
        return torch.tensor(traces, dtype=torch.float64), 0.0
    signs = _signs(information, probes, generator)
    samples = torch.stack([part.squares(signs) for part in information.parts])
    return samples.mean(1).cpu(), _mean_and_error(samples.mean(0))[1]


def _plan_traces(
    information: MeanInformation, planned_by: "Defense", probes: int, generator: torch.Generator
) -> tuple[Tensor, float]:
    leaks = [
        plan_information_trace(one.message, one.inputs, planned_by, probes, generator)
        for one in information.parts
    ]
    error = sum(error**2 for _, error in leaks) ** 0.5 / len(leaks)
    return torch.tensor([leak for leak, _ in leaks], dtype=torch.float64), error


def dense_bound(
    information: MeanInformation, prior: Prior | None, planned_by: "Defense | None"
) -> Formed:
    """tr (J_D + J_P)⁻¹ from the eigenvalues; infinite where a direction is left unseen."""
    each = _matrices(information, planned_by)
    kept = list(each) if information.size**2 * len(information.parts) <= BATCHES_LIMIT else []
    matrix = sum(kept or each, torch.zeros(())) / len(information.parts)
    inverse = _inverse_root(matrix, prior, information)
    if inverse is None:
        return Formed(float("inf"), 0.0, None, float("inf"))
    total = float(inverse.square().sum())
    pulled = [float(((one @ inverse) * (inverse @ (inverse.T @ inverse))).sum()) for one in kept]
    examples, matched = information.examples, total
    if examples > 1:
        matched = matched_error(torch.linalg.svdvals(inverse).square(), examples)
    return Formed(total, 0.0, _reciprocal_spread(total, pulled), matched)


def _matrices(information: MeanInformation, planned_by: "Defense | None") -> Iterator[Tensor]:
    """J_F of each batch, with what its plan reveals."""
    for one in information.parts:
        matrix = one.matrix()
        if planned_by is not None:
            matrix = matrix + plan_information(one.message, one.inputs, planned_by)
        yield matrix


def _inverse_root(data: Tensor, prior: Prior | None, information: MeanInformation) -> Tensor | None:
    """R with R Rᵀ = (J_D + J_P)⁻¹; `None` where it does not exist.

    With a prior of covariance L Lᵀ, R = L U (1 + e)^{-½}, e and U of Lᵀ J_D L: the rounding errors
    of a large J_D cannot drown J_P, and the result is between 0 and the prior's own variance.
    """
    if prior is None:
        values, vectors = torch.linalg.eigh(data)
        resolution = values.abs().max() * len(data) * torch.finfo(information.dtype).eps
        return None if bool(values.min() <= resolution) else vectors * values.rsqrt()
    white = prior.from_white(prior.from_white(data, transposed=True).T, transposed=True)
    values, vectors = torch.linalg.eigh((white + white.T) / 2)
    root: Tensor = prior.from_white((vectors * (1 + values.clamp(min=0)).rsqrt()).T).T
    return root


def iterative_bound(
    information: MeanInformation,
    prior: Prior | None,
    planned_by: "Defense | None",
    probes: int,
    generator: torch.Generator,
) -> Formed:
    """tr A⁻¹ = E_z[zᵀ A⁻¹ z] over random signs z, each A⁻¹ z by conjugate gradients.

    With a prior of covariance L Lᵀ, A⁻¹ = L (1 + Lᵀ J_D L)⁻¹ Lᵀ. An unfinished solve is below the
    true zᵀ A⁻¹ z, so the result stays a lower bound; without a prior it may never finish, which is
    an error.

    After matching it is the larger of the trace form and of this less the most that matching takes,
    that without a message: `matched_error` is the least Σ λ_i exp(-t_i) over t ≥ 0 with
    Σ t_i = 2 log B!, so what it takes, Σ λ_i (1 - exp(-t_i)), grows with λ, and A⁻¹ is at most the
    prior's covariance.
    """
    if planned_by is not None:
        raise ValueError(
            "Parameter `planned_by` should be given only with solver='dense' or method='trace'."
            f" Found inputs of {information.size} entries with the iterative solver."
        )
    signs = _signs(information, probes, generator)
    if prior is None:
        solved, converged = conjugate_gradients(information, signs)
        if not converged:
            raise ValueError(
                "Parameter `prior` should be given for inputs this large: without one the"
                " information is (nearly) singular and the flat bound could not be computed. Found"
                " `prior = None`. Use `GaussianPrior.fit(samples)`, or method='trace'."
            )
    else:
        solved = _solved_in_white(information, prior, signs)
    total, error = _mean_and_error((signs * solved).sum(1))
    pulled = [float((solved * part(solved)).sum(1).mean()) for part in information.parts]
    matched = total if information.examples == 1 else _matched(information, prior, signs, total)
    return Formed(total, error, _reciprocal_spread(total, pulled), matched)


def _matched(
    information: MeanInformation, prior: Prior | None, signs: Tensor, total: float
) -> float:
    """The bound after matching, of the full one that only its sum is known of."""
    size, examples = information.size, information.examples
    trace = float(torch.stack([part.squares(signs) for part in information.parts]).mean())
    least = trace_error(trace, size, prior, matched=examples)
    if prior is None:
        return least
    variances = prior.variances.repeat(examples)
    taken = float(variances.sum()) - matched_error(variances, examples)
    return max(least, total - taken)


def _solved_in_white(information: MeanInformation, prior: Prior, signs: Tensor) -> Tensor:
    """A⁻¹ z for each row z."""

    def multiply(rows: Tensor) -> Tensor:
        product = information(prior.from_white(rows))
        return rows + prior.from_white(product, transposed=True)

    right = prior.from_white(signs, transposed=True)
    return prior.from_white(conjugate_gradients(multiply, right)[0])


def _reciprocal_spread(total: float, pulled: list[float]) -> tuple[float, float] | None:
    """The interval from q_b = tr A⁻¹ J_b A⁻¹ of each batch b, to first order in J_b.

    1 / tr A⁻¹ changes by (q_b - q̄) / (tr A⁻¹)²; q̄ ≤ tr A⁻¹, so it stays positive.
    """
    changes = torch.tensor(pulled, dtype=torch.float64)
    return _spread((1 + (changes - changes.mean()) / total) / total) if pulled and total else None


def _spread(inverse: Tensor) -> tuple[float, float] | None:
    """A 95 % bootstrap interval of 1 / mean over batches, widened by √(n / (n - 1))."""
    count = len(inverse)
    if count < 2:
        return None
    generator = named_stream("bound", count)
    chosen = torch.randint(count, (RESAMPLES, count), generator=generator)
    ends = torch.quantile(inverse[chosen].mean(1), torch.tensor(QUANTILES, dtype=inverse.dtype))
    middle = inverse.mean()
    low, high = (middle + (ends - middle) * (count / (count - 1)) ** 0.5).tolist()
    return 1 / high, (1 / low if low > 0 else float("inf"))


def _signs(information: MeanInformation, probes: int, generator: torch.Generator) -> Tensor:
    like = torch.empty(probes, information.size, dtype=torch.float64)
    return rademacher_like(like, generator).to(information.device)


def _mean_and_error(samples: Tensor) -> tuple[float, float]:
    count = len(samples)
    error = float(samples.std()) / count**0.5 if count > 1 else float("nan")
    return float(samples.mean()), error
