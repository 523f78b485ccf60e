"""How far a plan is from the best, and from isotropic noise, at equal utility."""

import pytest
import torch

from gradveil import (
    ClampedNoise,
    GradientNoise,
    Moments,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    utility,
)
from gradveil.mechanisms import Mechanism
from gradveil.theory import fisher_trace, gain_over_isotropic, share_of_optimum
from tests.defenses.cases import FREE, SWEEPS, Sweep, like, moments_of, powers, row
from tests.defenses.properties import perturbed, with_powers

EXACT = 1e-10
each_sweep = pytest.mark.parametrize("sweep", SWEEPS, ids=str)


def exactly(number: float) -> object:
    return pytest.approx(number, rel=EXACT, abs=0)


@each_sweep
@pytest.mark.parametrize("scale", [1e-5, 0.1, 1e5])
def test_the_optimum_has_all_of_it(sweep: Sweep, scale: float) -> None:
    moments = sweep.moments()
    assert share_of_optimum(moments, OptimalNoise(scale, **FREE).plan(moments)) == exactly(1.0)


@each_sweep
def test_no_noise_has_more(sweep: Sweep) -> None:
    moments = sweep.moments()
    planned = OptimalNoise(0.1, **FREE).plan(moments)
    for variances in perturbed(torch.ones(moments.size).double()):
        assert share_of_optimum(moments, with_powers(variances, planned)) <= 1 + EXACT


@each_sweep
def test_gain_is_the_quotient_of_the_shares(sweep: Sweep) -> None:
    moments = sweep.moments()
    isotropic, optimal = (
        kind.plan(moments) for kind in (GradientNoise(0.1), OptimalNoise(0.1, **FREE))
    )
    assert gain_over_isotropic(moments, isotropic) == exactly(1.0)
    expected = 1 / share_of_optimum(moments, isotropic)
    assert gain_over_isotropic(moments, optimal) == exactly(expected)
    if sweep.decades > 0 and moments.size > 1:
        assert expected > 1.1


@each_sweep
def test_gain_is_the_quotient_of_bounds_at_equal_utility(sweep: Sweep) -> None:
    moments, values = sweep.moments(1), sweep.values(1)
    layer = OptimalNoise(utility_budget=2.0, granularity="layer").plan(moments)
    isotropic = GradientNoise(utility_budget=2.0).plan(moments)
    assert utility(values, isotropic).second == exactly(utility(values, layer).second)
    expected = fisher_trace(moments, isotropic) / fisher_trace(moments, layer)
    assert gain_over_isotropic(moments, layer) == exactly(expected)


@pytest.mark.parametrize("clip", [0.3, 1.0, 100.0])
def test_with_clipping(clip: float) -> None:
    """Clamped entries reveal nothing: they belong to no optimum."""
    moments = SWEEPS[0].moments()
    optimal = OptimalClampedNoise(utility_budget=1.0, clip=clip, **FREE).plan(moments)
    classical = ClampedNoise(utility_budget=1.0, clip=clip).plan(moments)
    assert share_of_optimum(moments, optimal) == exactly(1.0)
    assert share_of_optimum(moments, classical) < 0.95
    expected = fisher_trace(moments, classical) / fisher_trace(moments, optimal)
    assert gain_over_isotropic(moments, optimal) == exactly(expected)


def test_with_clipping_over_several_batches() -> None:
    mean = Moments.average([SWEEPS[0].moments(seed).clipped(1.0) for seed in range(4)])
    optimal = OptimalClampedNoise(0.1, clip=1.0, **FREE).plan(mean)
    assert share_of_optimum(mean, optimal) == exactly(1.0)
    assert share_of_optimum(mean, ClampedNoise(0.1, clip=1.0).plan(mean)) < 0.95


@pytest.mark.parametrize("noise", [GradientNoise(0.1), OptimalNoise(0.1, **FREE)])
def test_with_pruning(noise: GradientNoise | OptimalNoise) -> None:
    """Pruned entries belong to no optimum either."""
    moments = SWEEPS[0].moments()
    share = share_of_optimum(moments, OptimalPruning(0.5, noise=noise).plan(moments))
    assert share <= 1 + EXACT
    assert (share == exactly(1.0)) == isinstance(noise, OptimalNoise)


@pytest.mark.parametrize("seed", range(5))
def test_with_probabilities(seed: int) -> None:
    moments = SWEEPS[0].moments()
    generator = torch.Generator().manual_seed(seed)
    keep = like(torch.rand(moments.size, generator=generator).double(), moments.squared_values)
    for variances in perturbed(torch.ones(moments.size).double(), seed, count=8):
        std = like(variances.sqrt(), moments.squared_values)
        assert share_of_optimum(moments, Mechanism(std, keep)) <= 1 + EXACT


def test_cap_and_floor_cost_little_of_it() -> None:
    moments = Sweep("wide", decades=2.0).moments()
    shares = [share_of_optimum(moments, OptimalNoise(0.1, cap=c).plan(moments)) for c in (1, 10)]
    assert shares[0] < shares[1] < 1


def test_equal_utility_not_equal_scale() -> None:
    """At one scale optimal noise may even reveal more; at one utility it never does."""
    values = {"w": torch.tensor([1e-3, 1.0, 1.0]).double()}
    moments = moments_of(values, {"w": torch.ones(3).double()})
    optimal, isotropic = (
        kind.plan(moments) for kind in (OptimalNoise(0.1, **FREE), GradientNoise(0.1))
    )
    assert float(powers(optimal).sum()) == pytest.approx(float(powers(isotropic).sum()))
    assert fisher_trace(moments, optimal) > fisher_trace(moments, isotropic)
    assert gain_over_isotropic(moments, optimal) > 1


# ----------------------------------------------------------------------------- degenerate cases


def test_where_nothing_is_revealed_all_plans_are_as_good() -> None:
    values = SWEEPS[0].values()
    moments = moments_of(values, {name: 0 * value for name, value in values.items()})
    assert share_of_optimum(moments, Mechanism(1.0)) == 1.0
    assert gain_over_isotropic(moments, Mechanism(1.0)) == 1.0


def test_where_something_is_sent_bare_nothing_is_reached() -> None:
    moments = SWEEPS[0].moments()
    assert share_of_optimum(moments, Mechanism(0.0)) == 0.0
    assert gain_over_isotropic(moments, Mechanism(0.0)) == 1.0
    std = {name: torch.ones_like(s) for name, s in moments.squared_values.items()}
    std["scalar"] = torch.zeros(()).double()
    assert share_of_optimum(moments, Mechanism(std)) == 0.0
    assert gain_over_isotropic(moments, Mechanism(std)) == 0.0


def test_values_of_zero() -> None:
    slopes = {"w": torch.ones(3).double()}
    moments = moments_of({"w": torch.zeros(3).double()}, slopes)
    assert gain_over_isotropic(moments, Mechanism(1.0)) == 1.0
    assert share_of_optimum(moments, Mechanism(1.0)) == 0.0
    assert float(row(moments.squared_values).sum()) == 0.0
