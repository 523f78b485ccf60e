"""What all pruning defenses share: how many are kept, the budget, the noise on what is kept."""

from typing import Any

import pytest
import torch

from gradveil import (
    ClampedNoise,
    GaussianPrior,
    GradientNoise,
    GradientPruning,
    Moments,
    OptimalNoise,
    OptimalPruning,
    Rounding,
    measure,
    reconstruction_bound,
    utility,
)
from gradveil.defenses._pruning import keep_lowest
from gradveil.mechanisms import Mechanism
from gradveil.theory import fisher_trace
from tests.mechanisms.statistics import assert_mean, draws

from .cases import SWEEPS, Sweep, batch, kept, like, message, moments_of, powers, row
from .properties import EXACT, assert_feasible_keep, assert_threshold_separates, assert_utility

Pruning = type[GradientPruning] | type[OptimalPruning]

both = pytest.mark.parametrize("kind", [GradientPruning, OptimalPruning])
either_noise = pytest.mark.parametrize(
    "noise", [GradientNoise(0.3), OptimalNoise(0.3)], ids=["isotropic", "optimal"]
)


@both
@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
def test_exactly_the_planned_share_is_kept(kind: Pruning, sweep: Sweep) -> None:
    moments = sweep.moments(1)
    generator = torch.Generator().manual_seed(0)
    for ratio in [0.0, 1.0, 0.5, *torch.rand(10, generator=generator).tolist()]:
        mechanism = kind(ratio).plan(moments)
        assert set(kept(mechanism).tolist()) <= {0.0, 1.0}
        assert int(kept(mechanism).sum()) == moments.size - round(ratio * moments.size)
        assert float(powers(mechanism).sum()) == 0.0


@both
def test_ratio_0_keeps_all_and_1_keeps_none(kind: Pruning) -> None:
    values = SWEEPS[0].values()
    everything = kind(0.0).plan(SWEEPS[0].moments()).apply(values)
    nothing = kind(1.0).plan(SWEEPS[0].moments()).apply(values)
    assert all(torch.equal(everything[name], value) for name, value in values.items())
    assert all(float(value.abs().sum()) == 0.0 for value in nothing.values())


@both
def test_ties_are_resolved_by_position(kind: Pruning) -> None:
    moments = next(s for s in SWEEPS if s.name == "all equal").moments()
    keep = kept(kind(0.25).plan(moments))
    assert keep.tolist() == sorted(keep.tolist(), reverse=True)
    assert torch.equal(keep, kept(kind(0.25).plan(moments)))


@both
@pytest.mark.parametrize("size", [1, 2, 3])
def test_small_messages(kind: Pruning, size: int) -> None:
    values = {"w": torch.arange(1.0, size + 1)}
    moments = moments_of(values, {"w": torch.ones(size)})
    for ratio in (0.0, 0.4, 0.6, 1.0):
        assert int(kept(kind(ratio).plan(moments)).sum()) == size - round(ratio * size)


def test_magnitude_pruning_keeps_the_largest_values() -> None:
    moments = SWEEPS[0].moments(2)
    keep = kept(GradientPruning(0.6).plan(moments))
    assert_threshold_separates(-row(moments.squared_values), keep, fractions=0)


@both
@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
@pytest.mark.parametrize("share", [0.0, 0.123, 0.77, 1.0])
def test_utility_budget_is_met_in_expectation(kind: Pruning, sweep: Sweep, share: float) -> None:
    moments = sweep.moments(3)
    budget = share * float(row(moments.squared_values).sum())
    mechanism = kind(utility_budget=budget).plan(moments)
    assert_feasible_keep(moments, mechanism, budget)
    between = (kept(mechanism) > 0) & (kept(mechanism) < 1)
    assert int(between.sum()) <= 1
    assert_utility(sweep.values(3), mechanism, first=budget)


@both
def test_utility_budget_is_met_by_what_is_sent(kind: Pruning) -> None:
    values, moments = SWEEPS[0].values(), SWEEPS[0].moments()
    worth = float(row(moments.squared_values).sum())
    mechanism = kind(utility_budget=0.4 * worth).plan(moments)
    assert int(((kept(mechanism) > 0) & (kept(mechanism) < 1)).sum()) == 1
    sent = draws(lambda generator: mechanism.apply(values, generator), 800)
    gained = sum((value * sent[name]).reshape(800, -1).sum(1) for name, value in values.items())
    assert float(gained.std()) > 0
    assert_mean(gained, 0.4 * worth)


@both
def test_a_budget_beyond_the_undefended_utility_is_refused(kind: Pruning) -> None:
    moments = SWEEPS[0].moments()
    worth = float(row(moments.squared_values).sum())
    with pytest.raises(ValueError, match=rf"`utility_budget` should be at most.*{worth:.6g}"):
        kind(utility_budget=1.01 * worth).plan(moments)


# ------------------------------------------------------------------------------- noisy (Eq. 18)


@both
@either_noise
def test_noise_is_on_what_is_kept_with_its_scale_there(kind: Pruning, noise: Any) -> None:
    moments = SWEEPS[0].moments()
    mechanism = kind(0.6, noise=noise).plan(moments)
    support = kept(mechanism) > 0
    assert torch.equal(powers(mechanism) > 0, support)
    assert float(powers(mechanism)[support].mean()) == pytest.approx(0.09, rel=EXACT, abs=0)


@both
def test_optimal_noise_has_its_shape_on_what_is_kept(kind: Pruning) -> None:
    moments = SWEEPS[0].moments()
    mechanism = kind(0.6, noise=OptimalNoise(0.3)).plan(moments)
    whole = powers(OptimalNoise(0.3).plan(moments))
    quotients = (powers(mechanism) / whole)[kept(mechanism) > 0]
    torch.testing.assert_close(quotients, quotients[0].expand_as(quotients), rtol=EXACT, atol=0.0)


@both
@either_noise
def test_nothing_kept_has_no_noise(kind: Pruning, noise: Any) -> None:
    mechanism = kind(1.0, noise=noise).plan(SWEEPS[0].moments())
    assert float(powers(mechanism).sum()) == 0.0
    assert fisher_trace(SWEEPS[0].moments(), mechanism) == 0.0


@both
@pytest.mark.parametrize("noise", [GradientNoise, OptimalNoise])
def test_noise_with_a_utility_budget(kind: Pruning, noise: Any) -> None:
    mechanism = kind(0.6, noise=noise(utility_budget=0.5)).plan(SWEEPS[0].moments())
    assert utility(SWEEPS[0].values(), mechanism).second == pytest.approx(-0.5, rel=EXACT, abs=0)


@pytest.mark.parametrize(
    ("kind", "noise"),
    [
        (OptimalPruning, GradientNoise(0.3)),
        (OptimalPruning, OptimalNoise(0.3)),
        (OptimalPruning, OptimalNoise(utility_budget=0.5)),
        (GradientPruning, GradientNoise(0.3)),
        (GradientPruning, OptimalNoise(0.3)),
        (GradientPruning, OptimalNoise(utility_budget=0.5)),
        (GradientPruning, OptimalNoise(target_error=0.01)),
    ],
)
@pytest.mark.parametrize("with_prior", [False, True], ids=["flat", "Gaussian"])
def test_target_error_keeps_as_many_as_it_can(kind: Pruning, noise: Any, with_prior: bool) -> None:
    """Targets just within the reach of 1, 4, 8 and 12 entries, the borders of the decision."""
    inputs = batch()
    prior = GaussianPrior(torch.zeros(3), 4 * torch.eye(3)) if with_prior else None
    moments = measure(message, inputs, "exact")
    any_target = kind(target_error=1.0, noise=noise, prior=prior)
    errors = [error_at(any_target, moments, count) for count in range(moments.size + 1)]
    for count in (1, 4, 8, 12):
        target = errors[count] * (1 - 1e-9)
        mechanism = kind(target_error=target, noise=noise, prior=prior).plan(moments)
        options = {"method": "trace", "public_plan": True}
        bound = reconstruction_bound(message, inputs, mechanism, prior, **options)
        assert bound.per_entry >= target
        most = max(c for c, error in enumerate(errors) if error >= target)
        assert int(kept(mechanism).sum()) == most >= count


def test_target_error_where_more_entries_reveal_less() -> None:
    """Silent entries, the last ones by magnitude, dilute what the first one reveals."""
    values = {"w": torch.tensor([3.0, 2.9, 2.8, 2.7, 2.6]).double()}
    moments = moments_of(values, {"w": torch.tensor([10.0, 1e-3, 1e-3, 1e-3, 1e-3]).double()})
    defense = GradientPruning(target_error=0.04, noise=OptimalNoise(0.3))
    assert [error_at(defense, moments, count) >= 0.04 for count in range(1, 6)] == [0, 0, 0, 0, 1]
    assert int(kept(defense.plan(moments)).sum()) == 5


def error_at(defense: Any, moments: Moments, count: int) -> float:
    """The trace bound per entry when `count` entries are kept, from the definitions."""
    shape = defense.shape(moments)
    support = like(keep_lowest(defense.scores(shape, moments), count), moments.squared_values)
    variances = defense.noise.variances(shape, moments, support)
    noisy = Mechanism({n: v.sqrt() for n, v in variances.items()}, support)
    trace = fisher_trace(moments, noisy)
    if defense.prior:
        precision = defense.prior.precision
        trace += float(precision.trace()) * moments.input_size / len(precision)
    return moments.input_size / trace if trace > 0 else float("inf")


@both
def test_impossible_target(kind: Pruning) -> None:
    prior = GaussianPrior(torch.zeros(3), 4 * torch.eye(3))
    defense = kind(target_error=4.5, noise=GradientNoise(0.3), prior=prior)
    with pytest.raises(ValueError, match=r"`target_error` should be below.*Found.*4\.5"):
        defense.plan(measure(message, batch(), "exact"))


@both
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"ratio": -0.1}, ValueError, r"`ratio` should be in \[0, 1\]. Found `ratio = -0.1`"),
        ({"ratio": 90}, ValueError, r"`ratio`.*Found `ratio = 90`.*divide by 100"),
        ({"ratio": float("nan")}, ValueError, "`ratio`.*nan"),
        ({"ratio": True}, TypeError, "`ratio` should be a number. Found bool"),
        ({"utility_budget": -1.0}, ValueError, "`utility_budget`.*-1.0"),
        ({"target_error": -1.0, "noise": GradientNoise(1.0)}, ValueError, "`target_error`.*-1.0"),
        ({"target_error": 1.0}, ValueError, "`noise` should be given with `target_error`"),
        ({}, ValueError, "Exactly one of.*'ratio', 'utility_budget', 'target_error'.*none"),
        (
            {"ratio": 0.5, "utility_budget": 1.0},
            ValueError,
            r"Exactly one of.*Found \['ratio', 'utility_budget'\]",
        ),
        ({"ratio": 0.5, "noise": 0.1}, TypeError, "`noise` should be.*Found float"),
        ({"ratio": 0.5, "noise": ClampedNoise(0.1)}, TypeError, "`noise`.*Found ClampedNoise"),
        ({"ratio": 0.5, "noise": Rounding(0.1)}, TypeError, "`noise`.*Found Rounding"),
    ],
)
def test_bad_arguments(
    kind: Pruning, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        kind(**options)


def test_moments_without_sensitivities() -> None:
    moments = Moments.of_values(SWEEPS[0].values(), input_size=10)
    assert GradientPruning(0.5).plan(moments).keep is not None
    for defense in (
        OptimalPruning(0.5),
        GradientPruning(0.5, noise=OptimalNoise(0.1)),
        GradientPruning(target_error=1.0, noise=GradientNoise(0.1)),
    ):
        with pytest.raises(ValueError, match=r"`moments` should hold sensitivities.*measure"):
            defense.plan(moments)
