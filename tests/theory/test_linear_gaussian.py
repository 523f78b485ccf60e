"""The case that is solved: a linear message, Gaussian noise, a Gaussian prior."""

import pytest
import torch
from torch import Tensor

from gradveil import GaussianPrior, reconstruction_bound
from gradveil.mechanisms import Mechanism
from gradveil.theory import FisherInformation
from tests.mechanisms.statistics import assert_mean

from .oracles import Linear, linear, normal, row, seeded, spread_prior

INPUTS = normal(2, 3, seed=1)
STD = {
    "w": torch.tensor([0.1, 2.0, 0.5, 1.0]).double().view(2, 2).repeat(2, 1)[:3].contiguous(),
    "b": torch.tensor([0.3, 5.0, 1.0]).double(),
    "s": torch.tensor(0.7).double(),
}
MESSAGE = linear()
SOME = {name: (std < 1.5).double() for name, std in STD.items()}
MECHANISMS = {
    "one level": Mechanism(std=0.5),
    "levels": Mechanism(STD),
    "pruned": Mechanism(STD, keep=SOME),
    "little noise": Mechanism(std=1e-5),
    "much noise": Mechanism(std=1e4),
}

every = pytest.mark.parametrize("name", MECHANISMS)


def posterior_covariance(mechanism: Mechanism, prior: GaussianPrior) -> Tensor:
    """(Aᵀ W A + Λ)⁻¹ with Λ the prior's precision, once for each example."""
    weights = row(mechanism.information(MESSAGE(INPUTS)))
    a = MESSAGE.matrix
    precision = torch.block_diag(*[prior.covariance.inverse()] * 2)
    return (a.T @ (weights[:, None] * a) + precision).inverse()


@every
def test_full_bound_is_the_posterior_error(name: str) -> None:
    prior = spread_prior()
    bound = reconstruction_bound(MESSAGE, INPUTS, MECHANISMS[name], prior, solver="dense")
    expected = float(posterior_covariance(MECHANISMS[name], prior).trace())
    # precisions span up to 1e12 (noise 1e-5 beside a prior of 0.1 … 100): 1e-16 · 1e12
    assert bound.total == pytest.approx(expected, rel=1e-6)
    assert bound.per_entry == pytest.approx(bound.total / 6)
    assert (bound.method, bound.standard_error) == ("full", 0.0)


@every
def test_iterative_bound_agrees_within_its_standard_error(name: str) -> None:
    prior = spread_prior()
    bound = reconstruction_bound(
        MESSAGE, INPUTS, MECHANISMS[name], prior, solver="iterative", probes=400, generator=seeded()
    )
    expected = float(posterior_covariance(MECHANISMS[name], prior).trace())
    # conjugate gradients stop at a relative residual of 1e-4
    assert abs(bound.total - expected) < 4 * bound.standard_error + 1e-3 * expected
    assert 0 < bound.standard_error < 0.1 * expected


@every
def test_trace_bound_is_below_the_full_one(name: str) -> None:
    prior = spread_prior()
    full, trace = (
        reconstruction_bound(MESSAGE, INPUTS, MECHANISMS[name], prior, method)
        for method in ("full", "trace")
    )
    assert 0 < trace.total < full.total


@pytest.mark.parametrize("name", ["one level", "levels", "pruned", "much noise"])
def test_posterior_mean_achieves_the_bound(name: str) -> None:
    """Monte Carlo of the best estimator there is: draw x, send y, reconstruct, compare."""
    prior, mechanism = spread_prior(), MECHANISMS[name]
    errors = torch.tensor(reconstruct(mechanism, prior, count=600), dtype=torch.float64)
    bound = reconstruction_bound(MESSAGE, INPUTS, mechanism, prior)
    assert_mean(errors, bound.total)


def reconstruct(mechanism: Mechanism, prior: GaussianPrior, count: int) -> list[float]:
    generator = seeded(3)
    covariance = posterior_covariance(mechanism, prior)
    weights = row(mechanism.information(MESSAGE(INPUTS)))
    mean = prior.mean.repeat(2)
    gain = covariance @ (MESSAGE.matrix.T * weights)
    errors = []
    for _ in range(count):
        x = prior.sample(2, generator).flatten()
        y = row(mechanism.apply(MESSAGE(x), generator))
        guess = mean + gain @ (y - MESSAGE.matrix @ mean)
        errors.append(float((guess - x).square().sum()))
    return errors


def test_erratum_2_the_printed_term_exceeds_what_the_prior_mean_achieves() -> None:
    """m² / (tr J_D + m λ_min(J_P)) is no lower bound: guessing the mean does better than it."""
    prior, mechanism = spread_prior(), MECHANISMS["much noise"]
    information = FisherInformation(MESSAGE, INPUTS, mechanism).matrix()
    least = float(torch.linalg.eigvalsh(prior.precision).min())
    printed = 6**2 / (float(information.trace()) + 6 * least)
    samples = prior.sample(4000, seeded()).view(2000, 6)
    achieved = (samples - prior.mean.repeat(2)).square().sum(1)
    assert_mean(achieved, 2 * float(prior.covariance.trace()))
    assert printed > 2 * float(achieved.mean())
    for method in ("full", "trace"):
        bound = reconstruction_bound(MESSAGE, INPUTS, mechanism, prior, method)
        assert bound.total <= 2 * float(prior.covariance.trace())


@every
def test_the_largest_eigenvalue_gives_a_valid_but_looser_form(name: str) -> None:
    """Weyl's inequality has λ_max(J_P) there; the library's m² / (tr J_D + tr J_P) is tighter."""
    prior, mechanism = spread_prior(), MECHANISMS[name]
    information = FisherInformation(MESSAGE, INPUTS, mechanism).matrix()
    most = float(torch.linalg.eigvalsh(prior.precision).max())
    weyl = 6**2 / (float(information.trace()) + 6 * most)
    bound = reconstruction_bound(MESSAGE, INPUTS, mechanism, prior, "trace")
    assert weyl < bound.total


def test_flat_prior_all_trace_forms_agree() -> None:
    """A prior that knows nothing: J_P → 0 in every form."""
    mechanism = MECHANISMS["levels"]
    flat = reconstruction_bound(MESSAGE, INPUTS, mechanism, None, "trace")
    vague = GaussianPrior(torch.zeros(3).double(), 1e14 * torch.eye(3).double())
    nearly = reconstruction_bound(MESSAGE, INPUTS, mechanism, vague, "trace")
    information = FisherInformation(MESSAGE, INPUTS, mechanism).matrix()
    assert flat.total == pytest.approx(36 / float(information.trace()), rel=1e-12)
    assert nearly.total == pytest.approx(flat.total, rel=1e-10)
    assert (flat.prior, nearly.prior) == ("flat", "Gaussian")


@every
def test_flat_full_bound_is_least_squares(name: str) -> None:
    """tr (Aᵀ W A)⁻¹, the variance of weighted least squares, by both solvers."""
    mechanism = MECHANISMS[name]
    weights = row(mechanism.information(MESSAGE(INPUTS)))
    a = MESSAGE.matrix
    expected = float((a.T @ (weights[:, None] * a)).inverse().trace())
    dense = reconstruction_bound(MESSAGE, INPUTS, mechanism, solver="dense")
    assert dense.total == pytest.approx(expected, rel=1e-9)
    iterative = reconstruction_bound(
        MESSAGE, INPUTS, mechanism, solver="iterative", probes=400, generator=seeded()
    )
    assert abs(iterative.total - expected) < 4 * iterative.standard_error + 1e-3 * expected


def test_a_direction_that_is_not_seen_is_lost() -> None:
    """A of rank 5 for 6 unknowns: infinite without a prior, the prior's variance with one."""
    message, mechanism = Linear(normal(10, 5) @ normal(5, 6, seed=2)), Mechanism(std=0.1)
    assert reconstruction_bound(message, INPUTS, mechanism).total == float("inf")
    prior = spread_prior()
    bound = reconstruction_bound(message, INPUTS, mechanism, prior)
    assert 0 < bound.total < 2 * float(prior.covariance.trace())
    with pytest.raises(ValueError, match=r"`prior` should be given.*Found `prior = None`"):
        reconstruction_bound(message, INPUTS, mechanism, solver="iterative")


def test_nothing_is_seen() -> None:
    blind, prior = Linear(torch.zeros(10, 6).double()), spread_prior()
    for method in ("full", "trace"):
        flat = reconstruction_bound(blind, INPUTS, Mechanism(1.0), None, method)
        assert flat.total == float("inf")
    bound = reconstruction_bound(blind, INPUTS, Mechanism(1.0), prior)
    assert bound.total == pytest.approx(2 * float(prior.covariance.trace()), rel=1e-9)


@pytest.mark.slow
def test_mask_of_a_mixed_mechanism() -> None:
    """tr (J + J_P)⁻¹ is convex in J, so the mean information bounds the mean error (Eq. 5)."""
    prior = spread_prior()
    keep = {name: torch.full_like(std, 0.5) for name, std in STD.items()}
    bound = reconstruction_bound(MESSAGE, INPUTS, Mechanism(STD, keep), prior)
    masks = torch.randint(0, 2, (200, 10), generator=seeded()).double()
    errors = []
    for mask in masks:
        parts = {"w": mask[:6].view(3, 2), "b": mask[6:9], "s": mask[9]}
        errors.append(reconstruction_bound(MESSAGE, INPUTS, Mechanism(STD, parts), prior).total)
    assert bound.total < sum(errors) / len(errors)
