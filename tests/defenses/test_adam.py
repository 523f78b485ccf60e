"""The optimum for Adam: KKT, rivals at equal trace, its two limits, and the amounts."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gradveil import Moments, OptimalNoise
from gradveil.defenses import _adam
from gradveil.mechanisms import Mechanism
from gradveil.theory import fisher_trace
from tests.defenses.cases import FREE, SWEEPS, Sweep, moments_of, powers, row
from tests.defenses.properties import noise_price, perturbed, with_powers

SCALES = (1e-4, 0.1, 1.0, 30.0)


def plan(moments: Moments, scale: float = 1.0) -> Mechanism:
    return OptimalNoise(scale, utility="adam", **FREE).plan(moments)


def gain(moments: Moments, variances: Tensor) -> float:
    """What Adam gains in a step: Σ g_i² / √(g_i² + v_i)."""
    squares = row(moments.squared_values)
    return float((squares / (squares + variances).sqrt()).sum())


def at_equal_trace(moments: Moments, variances: Tensor, mechanism: Mechanism) -> Tensor:
    rival = fisher_trace(moments, with_powers(variances, mechanism))
    return variances * rival / fisher_trace(moments, mechanism)


@pytest.mark.parametrize("sweep", SWEEPS[:1] + SWEEPS[6:], ids=str)
@pytest.mark.parametrize("scale", SCALES)
def test_kkt(sweep: Sweep, scale: float) -> None:
    """g_i²/(g_i² + v_i)^(3/2) = μ s_i²/v_i² with one μ for all entries."""
    moments = sweep.moments()
    squares, slopes = row(moments.squared_values), row(moments.known_squared_sensitivities)
    v = powers(plan(moments, scale))
    multipliers = squares / (squares + v) ** 1.5 * v.square() / slopes
    torch.testing.assert_close(
        multipliers, multipliers.mean().expand_as(multipliers), rtol=1e-6, atol=0.0
    )


@pytest.mark.parametrize("scale", SCALES)
def test_no_noise_of_equal_trace_gains_more(scale: float) -> None:
    moments = SWEEPS[0].moments()
    mechanism = plan(moments, scale)
    best = gain(moments, powers(mechanism))
    for variances in rivals(moments, mechanism):
        assert gain(moments, at_equal_trace(moments, variances, mechanism)) <= best * (1 + 1e-9)


def rivals(moments: Moments, mechanism: Mechanism) -> Iterator[Tensor]:
    yield torch.ones(moments.size).double()
    yield powers(OptimalNoise(1.0, **FREE).plan(moments))
    yield from perturbed(powers(mechanism))


def test_it_gains_visibly_more_than_theorem_2_where_noise_is_large() -> None:
    moments = SWEEPS[0].moments()
    mechanism = plan(moments, 1e4)
    theorem_2 = powers(OptimalNoise(1.0, **FREE).plan(moments))
    rival = at_equal_trace(moments, theorem_2, mechanism)
    assert gain(moments, powers(mechanism)) > 1.05 * gain(moments, rival)


@pytest.mark.parametrize(("scale", "power"), [(1e-7, None), (1e12, 4)])
def test_the_limits_of_little_and_of_much_noise(scale: float, power: int | None) -> None:
    moments = SWEEPS[0].moments()
    g, s = (row(x).sqrt() for x in (moments.squared_values, moments.known_squared_sensitivities))
    expected = s * g.sqrt() if power is None else (s / g) ** power
    ratios = powers(plan(moments, scale)) / expected
    torch.testing.assert_close(ratios, ratios.mean().expand_as(ratios), rtol=1e-3, atol=0.0)


def test_every_option_sets_the_amount() -> None:
    moments = SWEEPS[0].moments()
    options = {"scale": 0.7, "utility_budget": 3.0, "target_error": 0.2}
    plans = {
        name: OptimalNoise(**{name: value}, utility="adam", **FREE).plan(moments)
        for name, value in options.items()
    }
    assert float(powers(plans["scale"]).mean()) == pytest.approx(0.49, rel=1e-9)
    assert noise_price(moments, plans["utility_budget"]) == pytest.approx(3.0, rel=1e-9)
    bound = moments.input_size / fisher_trace(moments, plans["target_error"])
    assert bound == pytest.approx(0.2, rel=1e-9)
    for mechanism in plans.values():
        scale = float(powers(mechanism).mean().sqrt())
        torch.testing.assert_close(
            powers(mechanism), powers(plan(moments, scale)), rtol=1e-6, atol=0
        )


def test_a_sample_of_the_entries_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = SWEEPS[7].moments()
    exact = powers(plan(moments, 0.5))
    monkeypatch.setattr(_adam, "SAMPLE", 200)
    mechanism = plan(moments, 0.5)
    rival = at_equal_trace(moments, exact, mechanism)
    assert gain(moments, powers(mechanism)) > 0.99 * gain(moments, rival)


def test_entries_without_sensitivity_or_value_are_hidden() -> None:
    values = {"w": torch.tensor([1.0, 0.0, 2.0, 3.0])}
    moments = moments_of(values, {"w": torch.tensor([1.0, 1.0, 0.0, 2.0])})
    std = OptimalNoise(0.5, utility="adam").plan(moments).std
    assert isinstance(std, dict)
    assert float(std["w"].min()) > 0
    assert bool(std["w"].isfinite().all())
    assert float(powers(OptimalNoise(0.5, utility="adam").plan(moments)).mean()) == pytest.approx(
        0.25, rel=1e-5
    )


def test_nothing_to_protect_gets_even_noise() -> None:
    moments = moments_of({"w": torch.ones(3)}, {"w": torch.zeros(3)})
    assert powers(OptimalNoise(0.5, utility="adam").plan(moments)).tolist() == [0.25] * 3


def test_layers_have_one_level_each() -> None:
    mechanism = OptimalNoise(0.5, utility="adam", granularity="layer").plan(SWEEPS[0].moments())
    assert isinstance(mechanism.std, dict)
    assert all(len(std.unique()) == 1 for std in mechanism.std.values())
