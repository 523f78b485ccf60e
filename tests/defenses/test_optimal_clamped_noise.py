"""Theorem 3 and Eq. 16: the optimum with clipping; clamped entries get no noise."""

import pytest
import torch

from gradveil import ClampedNoise, Moments, OptimalClampedNoise, OptimalNoise, utility
from gradveil.mechanisms import Mechanism
from gradveil.theory import fisher_trace

from .cases import FREE, SWEEPS, Sweep, like, powers, row
from .properties import (
    EXACT,
    assert_no_better_noise,
    assert_noise_is_stationary,
    assert_utility,
    at_equal_price,
    noise_price,
    perturbed,
)


def clip_of(sweep: Sweep) -> float:
    """A threshold that clamps a good part of the entries: the size of a typical value."""
    return 0.9 * sweep.value_size


def clamped_row(moments: Moments, clip: float) -> torch.Tensor:
    return row(moments.squared_values) >= clip**2


@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_feasible_noise_reveals_less(sweep: Sweep, seed: int) -> None:
    moments, clip = sweep.moments(seed), clip_of(sweep)
    mechanism = OptimalClampedNoise(utility_budget=2.0, clip=clip, **FREE).plan(moments)
    clamped = clamped_row(moments, clip)
    if bool(clamped.all()):
        assert float(powers(mechanism).sum()) == 0.0
        return
    assert_noise_is_stationary(moments.clipped(clip), mechanism)
    rivals = list(perturbed(powers(mechanism), seed))
    elsewhere = torch.where(clamped, powers(mechanism).max(), 0.0)
    assert_no_better_noise(moments, mechanism, iter(rivals))
    assert_no_better_noise(moments, mechanism, (rival + elsewhere for rival in rivals))


@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
def test_clamped_entries_get_no_noise(sweep: Sweep) -> None:
    """Erratum 6, in the paper's form."""
    moments, clip = sweep.moments(2), clip_of(sweep)
    for granularity in ("parameter", "layer"):
        mechanism = OptimalClampedNoise(0.1, clip=clip, granularity=granularity, least=0.0).plan(
            moments
        )
        assert torch.equal(powers(mechanism) == 0, clamped_row(moments, clip))
        assert mechanism.clip == clip


@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
@pytest.mark.parametrize("granularity", ["parameter", "layer"])
def test_by_default_noise_hides_which_entries_are_clamped(sweep: Sweep, granularity: str) -> None:
    """A clamped entry has the median level of those of its tensor that are not."""
    moments, clip = sweep.moments(2), clip_of(sweep)
    mechanism = OptimalClampedNoise(0.1, clip=clip, granularity=granularity).plan(moments)
    assert bool((powers(mechanism) > 0).all())
    clamped = like(clamped_row(moments, clip), moments.squared_values)
    for name, level in like(powers(mechanism), moments.squared_values).items():
        inside = level[~clamped[name]]
        if len(inside.reshape(-1)) and bool(clamped[name].any()):
            middle = inside.median().expand(int(clamped[name].sum()))
            torch.testing.assert_close(level[clamped[name]], middle)


def test_noise_on_a_clamped_entry_costs_and_hides_nothing() -> None:
    moments = SWEEPS[0].moments()
    mechanism = OptimalClampedNoise(0.1, clip=1.0, **FREE).plan(moments)
    clamped = clamped_row(moments, 1.0)
    assert 0 < int(clamped.sum()) < moments.size
    more = like((powers(mechanism) + clamped * 0.01).sqrt(), moments.squared_values)
    wasteful = Mechanism(more, mechanism.keep, mechanism.clip)
    assert fisher_trace(moments, wasteful) == fisher_trace(moments, mechanism)
    values = SWEEPS[0].values()
    assert utility(values, wasteful).second < utility(values, mechanism).second


def test_without_clamped_entries_it_is_optimal_noise() -> None:
    moments = SWEEPS[0].moments()
    clip = 2 * float(row(moments.squared_values).max()) ** 0.5
    plans = [OptimalClampedNoise(0.1, clip=clip).plan(moments), OptimalNoise(0.1).plan(moments)]
    assert torch.equal(powers(plans[0]), powers(plans[1]))


@pytest.mark.parametrize("granularity", ["parameter", "layer"])
def test_better_than_its_classical_twin_at_equal_utility(granularity: str) -> None:
    moments, values = SWEEPS[0].moments(), SWEEPS[0].values()
    optimal = OptimalClampedNoise(
        utility_budget=0.5, clip=1.0, granularity=granularity, **FREE
    ).plan(moments)
    classical = ClampedNoise(utility_budget=0.5, clip=1.0).plan(moments)
    assert_utility(values, optimal, second=-0.5)
    assert_utility(values, classical, second=-0.5)
    assert fisher_trace(moments, optimal) < 0.9 * fisher_trace(moments, classical)


def test_layer_granularity_is_the_best_with_one_level_on_what_is_left() -> None:
    moments, clip = SWEEPS[0].moments(), 1.0
    mechanism = OptimalClampedNoise(0.1, clip=clip, granularity="layer", **FREE).plan(moments)
    inside = {n: s < clip**2 for n, s in moments.squared_values.items()}
    least = 0.0
    for name, level in like(powers(mechanism), moments.squared_values).items():
        mask = inside[name]
        if bool(mask.any()):
            assert float(level[mask].max()) == float(level[mask].min())
            squares, slopes = (
                moments.squared_values[name],
                moments.known_squared_sensitivities[name],
            )
            least += float(squares[mask].sum() * slopes[mask].sum()) ** 0.5
    found = fisher_trace(moments, mechanism) * noise_price(moments, mechanism)
    assert found == pytest.approx(least**2, rel=EXACT, abs=0)


def test_global_form_is_the_best_for_batches_measured_with_the_clip() -> None:
    """An entry clamped in some batches only still reveals itself in the others: it gets noise."""
    clip = 1.0
    batches = [SWEEPS[0].moments(seed).clipped(clip) for seed in range(5)]
    mean = Moments.average(batches)
    mechanism = OptimalClampedNoise(0.1, clip=clip, **FREE).plan(mean)
    assert_noise_is_stationary(mean, mechanism)
    assert_no_better_noise(mean, mechanism, perturbed(powers(mechanism)))
    assert_no_better_noise(mean, mechanism, iter([torch.ones(mean.size).double()]))
    each = torch.stack([row(one.known_squared_sensitivities) > 0 for one in batches])
    assert bool((each.any(0) & ~each.all(0)).any())
    assert torch.equal(powers(mechanism) > 0, each.any(0))
    expected = sum(fisher_trace(one, mechanism) for one in batches) / len(batches)
    assert fisher_trace(mean, mechanism) == pytest.approx(expected, rel=EXACT, abs=0)


@pytest.mark.parametrize(
    "defense", [OptimalClampedNoise(0.1, clip=1.0), ClampedNoise(target_error=1.0, clip=1.0)]
)
def test_an_average_without_the_clip_is_refused(
    defense: OptimalClampedNoise | ClampedNoise,
) -> None:
    mean = Moments.average([SWEEPS[0].moments(0), SWEEPS[0].moments(1)])
    with pytest.raises(ValueError, match=r"`clip = 1.0` should be those of one batch.*clip=1.0"):
        defense.plan(mean)


def test_everything_clamped() -> None:
    moments = Sweep("large", value_size=1e3, decades=0.0).moments()
    papers = OptimalClampedNoise(0.1, clip=1.0, least=0.0).plan(moments)
    assert float(powers(papers).sum()) == 0.0
    assert fisher_trace(moments, papers) == 0.0
    hidden = OptimalClampedNoise(0.1, clip=1.0).plan(moments)
    torch.testing.assert_close(powers(hidden), torch.full((moments.size,), 0.01).double())


def test_erratum_4_holds_for_the_clipped_gradient_too() -> None:
    moments, clip = SWEEPS[0].moments(), 1.0
    mechanism = OptimalClampedNoise(0.1, clip=clip, **FREE).plan(moments)
    seen = moments.clipped(clip)
    printed = row(seen.known_squared_sensitivities) / row(seen.squared_values).sqrt()
    rival = at_equal_price(moments, printed, mechanism)
    assert fisher_trace(moments, rival) > 1.05 * fisher_trace(moments, mechanism)
