"""The bound on real messages: what it says of defenses, solvers, priors and plans."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from gradveil import (
    ClampedNoise,
    Defense,
    GaussianPrior,
    GradientMessage,
    GradientNoise,
    GradientPruning,
    NoDefense,
    NonFiniteError,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    Rounding,
    measure,
    reconstruction_bound,
)
from gradveil.mechanisms import Mechanism
from gradveil.models import build_model
from gradveil.sensitivity import Exact
from gradveil.theory import _bound as bound_module
from tests.zoo import Case, named

from .oracles import (
    batch_precision,
    dense_information,
    global_generator_untouched,
    linear,
    normal,
    seeded,
)

CASES = [named(name) for name in ("mlp", "scalar", "layer_norm", "conv_net")]
NOISY: list[Defense] = [
    GradientNoise(0.1),
    OptimalNoise(0.1),
    OptimalNoise(0.1, granularity="layer"),
    ClampedNoise(0.1, clip=0.2),
    OptimalClampedNoise(0.1, clip=0.2),
    OptimalPruning(0.5, noise=OptimalNoise(0.1)),
]
BARE: list[Defense] = [
    NoDefense(),
    GradientNoise(0.0),
    GradientPruning(0.5),
    OptimalPruning(0.5),
    Rounding(0.1),
    OptimalRounding(0.1),
]

each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_method = pytest.mark.parametrize("method", ["full", "trace"])


def prior_for(case: Case) -> GaussianPrior:
    return GaussianPrior.fit(normal(40, *case.shape[1:], seed=8))


@each_case
@pytest.mark.parametrize("defense", NOISY, ids=lambda d: type(d).__name__)
def test_full_is_the_definition_and_never_below_trace(case: Case, defense: Defense) -> None:
    message, inputs, prior = case.message(), case.inputs(), prior_for(case)
    moments = measure(message, inputs, "exact")
    mechanism = defense.plan(moments)
    weights = mechanism.information(message(inputs))
    finite = {n: torch.where(w.isinf(), 0.0, w) for n, w in weights.items()}
    information = dense_information(message, inputs, Weights(finite))
    expected = (information + batch_precision(prior, inputs.numel())).inverse().trace()
    options = {"public_plan": True}
    full = reconstruction_bound(message, inputs, mechanism, prior, **options)
    trace = reconstruction_bound(message, inputs, mechanism, prior, "trace", **options)
    assert full.total == pytest.approx(float(expected), rel=1e-8)
    m = inputs.numel()
    precisions = torch.linalg.eigvalsh(prior.covariance).flip(0).reciprocal()
    examples, data = m // len(precisions), float(information.trace())
    leading = [  # the errors along the k directions of largest variance
        (examples * k) ** 2 / (data + examples * float(precisions[:k].sum()))
        for k in range(1, len(precisions) + 1)
    ]
    assert trace.total == pytest.approx(max(leading), rel=1e-8)
    assert trace.total >= m**2 / (data + examples * float(prior.precision.trace())) * (1 - 1e-9)
    assert full.total >= trace.total
    assert full.per_entry == pytest.approx(full.total / m)


class Weights:
    """A mechanism of which only the information is known."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights = weights

    def information(self, values: Any) -> dict[str, torch.Tensor]:
        return self.weights


@each_method
@pytest.mark.parametrize("defense", BARE, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("with_prior", [False, True])
def test_deterministic_defenses_have_no_bound(
    method: str, defense: Defense, with_prior: bool
) -> None:
    case = named("mlp")
    message, inputs = case.message(), case.inputs()
    mechanism = defense.plan(measure(message, inputs, "exact"))
    prior = prior_for(case) if with_prior else None
    for solver in ("dense", "iterative"):
        bound = reconstruction_bound(message, inputs, mechanism, prior, method, solver=solver)
        assert (bound.total, bound.per_entry, bound.standard_error) == (0.0, 0.0, 0.0)


def test_pruning_everything_leaves_the_prior() -> None:
    case = named("mlp")
    message, inputs, prior = case.message(), case.inputs(), prior_for(case)
    nothing = GradientPruning(1.0).plan(measure(message, inputs, "exact"))
    bound = reconstruction_bound(message, inputs, nothing, prior)
    assert bound.total == pytest.approx(4 * float(prior.covariance.trace()), rel=1e-9)
    assert reconstruction_bound(message, inputs, nothing).total == float("inf")


@pytest.mark.parametrize("case", CASES[:3], ids=str)
@pytest.mark.parametrize("std", [1e-6, 1e-2, 1e4])
def test_iterative_agrees_with_dense(case: Case, std: float) -> None:
    message, inputs, prior = case.message(), case.inputs(), prior_for(case)
    dense = reconstruction_bound(message, inputs, Mechanism(std), prior, solver="dense")
    found = reconstruction_bound(
        message, inputs, Mechanism(std), prior, solver="iterative", probes=64, generator=seeded()
    )
    assert abs(found.total - dense.total) < 4 * found.standard_error + 1e-3 * dense.total
    assert found.standard_error < 0.25 * dense.total


def test_standard_error_falls_with_the_square_root_of_the_probes() -> None:
    case = named("mlp")
    message, inputs, prior = case.message(), case.inputs(), prior_for(case)
    errors = [
        reconstruction_bound(
            message,
            inputs,
            Mechanism(0.1),
            prior,
            solver="iterative",
            probes=probes,
            generator=seeded(),
        ).standard_error
        for probes in (100, 1600)
    ]
    assert errors[1] == pytest.approx(errors[0] / 4, rel=0.3)


@pytest.mark.parametrize("std", [1e-1, 1e-3, 1e-5, 1e-7])
def test_single_precision_agrees_where_little_is_seen(std: float) -> None:
    """Most of the gradient pruned, little noise: J is singular beside 1e-7 of its largest value."""
    case = named("mlp")
    totals = []
    for dtype in (torch.float32, torch.float64):
        message, inputs = case.message(dtype), case.inputs(dtype)
        keep = {n: torch.full_like(v, float(n == "2.bias")) for n, v in message(inputs).items()}
        mechanism = Mechanism(std, keep)
        totals.append(reconstruction_bound(message, inputs, mechanism, prior_for(case)).total)
    assert totals[0] == pytest.approx(totals[1], rel=1e-2)


@each_case
def test_large_inputs_estimate_the_trace(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    message, inputs, prior = case.message(), case.inputs(), prior_for(case)
    exact = reconstruction_bound(message, inputs, Mechanism(0.1), prior, "trace")
    monkeypatch.setattr(bound_module, "DENSE_LIMIT", 0)
    found = reconstruction_bound(
        message, inputs, Mechanism(0.1), prior, "trace", probes=200, generator=seeded()
    )
    assert exact.standard_error == 0.0
    assert 0 < found.standard_error < 0.2 * exact.total
    assert abs(found.total - exact.total) < 4 * found.standard_error


def test_large_inputs_are_solved_iteratively(monkeypatch: pytest.MonkeyPatch) -> None:
    case = named("mlp")
    message, inputs, prior = case.message(), case.inputs(), prior_for(case)
    monkeypatch.setattr(bound_module, "DENSE_LIMIT", 0)
    found = reconstruction_bound(message, inputs, Mechanism(0.1), prior, generator=seeded())
    assert found.standard_error > 0
    bare = reconstruction_bound(message, inputs, Mechanism(0.0), prior, "trace")
    assert (bare.total, bare.standard_error) == (0.0, 0.0)


def test_more_noise_is_a_larger_bound() -> None:
    case = named("mlp")
    message, inputs, prior = case.message(), case.inputs(), prior_for(case)
    for method in ("full", "trace"):
        totals = [
            reconstruction_bound(message, inputs, Mechanism(10.0**e), prior, method).total
            for e in (-8, -4, -1, 0, 1, 4, 8)
        ]
        rounding = 1e-12 * max(totals)
        assert all(b >= a - rounding for a, b in pairwise(totals))
        assert totals[-1] <= 4 * float(prior.covariance.trace()) * (1 + 1e-9)


def test_bound_names_its_prior() -> None:
    message, inputs = linear(), normal(2, 3)
    prior = GaussianPrior.fit(normal(50, 3))
    assert reconstruction_bound(message, inputs, Mechanism(1.0)).prior == "flat"
    named_prior = reconstruction_bound(message, inputs, Mechanism(1.0), prior).prior
    assert named_prior == "Gaussian fitted to 50 samples"


# ------------------------------------------------------------------------------ the plan's leak


@each_method
def test_counting_the_plan_lowers_the_bound(method: str) -> None:
    message, inputs = linear(), normal(2, 3)
    prior, defense = GaussianPrior.fit(normal(50, 3)), OptimalNoise(0.5, estimator=Exact())
    mechanism = defense.plan(measure(message, inputs, "exact"))
    without = reconstruction_bound(message, inputs, mechanism, prior, method)
    counted = reconstruction_bound(
        message, inputs, mechanism, prior, method, planned_by=defense, generator=seeded()
    )
    assert (without.counts_plan, counted.counts_plan) == (False, True)
    assert counted.total < 0.9 * without.total
    assert (counted.standard_error > 0) == (method == "trace")


def test_a_plan_from_other_data_has_nothing_to_count() -> None:
    """Its levels do not depend on the private batch: they are one more constant mechanism."""
    message, inputs, others = linear(), normal(2, 3), normal(2, 3, seed=9)
    mechanism = OptimalNoise(0.5).plan(measure(message, others, "exact"))
    constant = Mechanism({n: s.clone() for n, s in mechanism.std.items()})  # type: ignore[union-attr]
    bound, same = (
        reconstruction_bound(message, inputs, m, generator=seeded()) for m in (mechanism, constant)
    )
    assert not bound.counts_plan
    assert bound == same


def test_the_plan_cannot_be_counted_iteratively() -> None:
    message, inputs = linear(), normal(2, 3)
    with pytest.raises(
        ValueError, match=r"Parameter `planned_by`.*solver='dense' or method='trace'"
    ):
        reconstruction_bound(
            message, inputs, Mechanism(1.0), planned_by=OptimalNoise(1.0), solver="iterative"
        )


# ------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("solver", ["dense", "iterative"])
@each_method
def test_same_seed_same_bound_and_no_global_randomness(solver: str, method: str) -> None:
    case = named("mlp")
    message, inputs, prior = case.message(), case.inputs(), prior_for(case)

    def bound(seed: int | None, plan: Defense | None = None) -> float:
        generator = None if seed is None else seeded(seed)
        return reconstruction_bound(
            message,
            inputs,
            Mechanism(0.1),
            prior,
            method,
            planned_by=plan,
            solver=solver,
            generator=generator,
            probes=4,
        ).total

    with global_generator_untouched():
        assert bound(1) == bound(1)
        assert (bound(1) == bound(2)) == (solver == "dense" or method == "trace")
        bound(None)
        if method == "trace":
            bound(None, OptimalNoise(0.1))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"method": "exact"}, "`method` should be one of.*'full', 'trace'.*'exact'"),
        ({"solver": "lu"}, "`solver` should be one of.*'dense'.*'lu'"),
        ({"probes": 0}, "`probes` should be an integer of at least 1.*0"),
        ({"probes": 1.5}, "`probes` should be an integer of at least 1.*1.5"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"Parameter {text}"):
        reconstruction_bound(linear(), normal(2, 3), Mechanism(1.0), **options)


@each_method
@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_a_prior_of_other_examples_is_refused(method: str, size: int) -> None:
    """Even one whose size divides that of the batch: 2 of 3 entries are not 3 of 2."""
    prior = GaussianPrior(torch.zeros(size).double(), torch.eye(size).double())
    with pytest.raises(ValueError, match=rf"`prior` should be of examples.*{size} entries"):
        reconstruction_bound(linear(), normal(2, 3), Mechanism(1.0), prior, method)


@each_method
def test_bad_inputs(method: str) -> None:
    with pytest.raises(NonFiniteError, match=r"`inputs` should be finite. Found 6 of 6"):
        reconstruction_bound(
            linear(), torch.full((2, 3), float("nan")), Mechanism(1.0), None, method
        )
    with pytest.raises(TypeError, match=r"`inputs` should be floating point"):
        reconstruction_bound(linear(), torch.ones(2, 3).long(), Mechanism(1.0), None, method)


def test_the_bound_falls_with_the_noise_down_to_nothing() -> None:
    """A J_D of low rank and huge size must not drown the prior."""
    model = build_model("mlp", sizes=[40, 1, 2]).double()
    targets, inputs = torch.tensor([0, 1, 0]), normal(3, 40)
    message = GradientMessage(model, torch.nn.functional.cross_entropy, targets)
    prior = GaussianPrior.fit(3 * normal(200, 40, seed=1))
    totals = [
        reconstruction_bound(message, inputs, Mechanism(std), prior, solver="dense").total
        for std in (1e-2, 1e-4, 1e-6, 1e-8, 1e-12)
    ]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] >= 0


def test_what_a_mask_reveals_is_not_counted_and_said() -> None:
    case = named("mlp")
    message, inputs = case.message(), case.inputs()
    for defense, counted in (
        (OptimalNoise(0.1, estimator=Exact()), True),
        (OptimalPruning(0.5, noise=GradientNoise(0.1), estimator=Exact()), False),
    ):
        mechanism = defense.plan(measure(message, inputs, "exact"))
        found = reconstruction_bound(message, inputs, mechanism, method="trace", planned_by=defense)
        assert found.counts_plan is counted
