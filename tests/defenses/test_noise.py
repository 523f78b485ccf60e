"""What all noise defenses share: the scale, the utility budget and the target error."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradveil import (
    ClampedNoise,
    GaussianPrior,
    GradientNoise,
    Moments,
    OptimalClampedNoise,
    OptimalNoise,
    measure,
    reconstruction_bound,
)
from gradveil.theory import fisher_trace

from .cases import SWEEPS, Sweep, batch, message, powers, row
from .properties import EXACT, assert_utility

Make = Callable[..., GradientNoise | OptimalNoise]

KINDS: dict[str, Make] = {
    "isotropic": GradientNoise,
    "optimal": OptimalNoise,
    "layer": lambda *a, **options: OptimalNoise(*a, granularity="layer", **options),
    "DP-SGD": lambda *a, **options: ClampedNoise(*a, clip=1.0, **options),
    "optimal DP-SGD": lambda *a, **options: OptimalClampedNoise(*a, clip=1.0, **options),
    "layer DP-SGD": lambda *a, **options: OptimalClampedNoise(
        *a, clip=1.0, granularity="layer", **options
    ),
}
MODEST = [sweep for sweep in SWEEPS if sweep.value_size <= 1 and sweep.name != "all equal"]
"""Sweeps in which a clip of 1 leaves something unclamped."""

every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=list(KINDS))


@every_kind
@pytest.mark.parametrize("sweep", MODEST, ids=str)
@pytest.mark.parametrize("scale", [1e-6, 0.3, 1e6])
def test_equal_scale_is_equal_total_power(make: Make, sweep: Sweep, scale: float) -> None:
    """√(mean_i Σ_ii) = scale, whatever the shape of the noise (notes, point 7)."""
    moments = sweep.moments(3)
    found = powers(make(scale).plan(moments))
    assert float(found.sum()) == pytest.approx(moments.size * scale**2, rel=EXACT, abs=0)


@every_kind
@pytest.mark.parametrize("sweep", MODEST, ids=str)
@pytest.mark.parametrize("budget", [1e-9, 2.0, 1e9])
def test_utility_budget_is_met(make: Make, sweep: Sweep, budget: float) -> None:
    mechanism = make(utility_budget=budget).plan(sweep.moments(3))
    assert_utility(sweep.values(3), mechanism, second=-budget)


@every_kind
def test_utility_budget_in_single_precision(make: Make) -> None:
    """Float32: 1e-7 for each rounding, errors of the entries average out."""
    sweep = SWEEPS[0]
    values = {name: value.float() for name, value in sweep.values().items()}
    slopes = {name: s.float() for name, s in sweep.moments().known_squared_sensitivities.items()}
    moments = Moments({n: v.square() for n, v in values.items()}, slopes, 10)
    mechanism = make(utility_budget=2.0).plan(moments)
    assert_utility(values, mechanism, second=-2.0, rtol=1e-5)


@every_kind
@pytest.mark.parametrize("with_prior", [False, True], ids=["flat", "Gaussian"])
def test_target_error_is_the_trace_bound(make: Make, with_prior: bool) -> None:
    inputs = batch()
    prior = GaussianPrior(torch.zeros(3), 4 * torch.eye(3)) if with_prior else None
    moments = measure(message, inputs, "exact")
    for target in (1e-6, 0.5, 3.0):
        mechanism = make(target_error=target, prior=prior).plan(moments)
        bound = reconstruction_bound(message, inputs, mechanism, prior, "trace")
        assert bound.per_entry == pytest.approx(target, rel=EXACT, abs=0)


@every_kind
def test_target_error_beyond_the_prior_is_impossible(make: Make) -> None:
    """The prior alone leaves 1 / mean precision: 4 here, and no noise makes it more."""
    prior = GaussianPrior(torch.zeros(3), 4 * torch.eye(3))
    moments = measure(message, batch(), "exact")
    for target in (4.0, 5.0):
        with pytest.raises(ValueError, match=rf"`target_error` should be below.*4 per.*{target}"):
            make(target_error=target, prior=prior).plan(moments)


@every_kind
@pytest.mark.parametrize("option", ["scale", "utility_budget"])
def test_zero_is_no_noise(make: Make, option: str) -> None:
    moments = SWEEPS[0].moments()
    arguments = (0.0,) if option == "scale" else ()
    options = {} if option == "scale" else {option: 0.0}
    mechanism = make(*arguments, **options).plan(moments)
    assert float(powers(mechanism).sum()) == 0.0
    assert fisher_trace(moments, mechanism) == float("inf")


@every_kind
def test_more_noise_reveals_less_and_costs_more(make: Make) -> None:
    moments = SWEEPS[0].moments()
    plans = [make(scale).plan(moments) for scale in (0.01, 0.1, 1.0)]
    traces = [fisher_trace(moments, plan) for plan in plans]
    torch.testing.assert_close(torch.tensor(traces), traces[0] * torch.tensor([1, 1e-2, 1e-4]))


@pytest.mark.parametrize("make", [OptimalNoise, KINDS["optimal DP-SGD"], KINDS["layer"]])
@pytest.mark.parametrize("option", ["scale", "utility_budget", "target_error"])
def test_in_the_papers_form_nothing_to_hide_gets_no_noise(make: Make, option: str) -> None:
    silent = SWEEPS[0].moments()
    silent = Moments(
        silent.squared_values,
        {n: 0 * s for n, s in silent.known_squared_sensitivities.items()},
        input_size=10,
    )
    mechanism = make(**{option: 0.5}, least=0.0).plan(silent)
    assert float(powers(mechanism).sum()) == 0.0
    assert fisher_trace(silent, mechanism) == 0.0


@pytest.mark.parametrize("make", [OptimalNoise, KINDS["optimal DP-SGD"], KINDS["layer"]])
def test_no_sensitivity_anywhere_gets_isotropic_noise(make: Make) -> None:
    """650 of 650 entries of a head behind `detach` went out bare."""
    moments = SWEEPS[0].moments()
    silent = Moments(
        moments.squared_values,
        {n: 0 * s for n, s in moments.known_squared_sensitivities.items()},
        input_size=10,
    )
    torch.testing.assert_close(
        powers(make(scale=0.5).plan(silent)), torch.full((moments.size,), 0.25).double()
    )


@every_kind
def test_planning_is_pure(make: Make) -> None:
    moments = SWEEPS[0].moments()
    before = row(moments.squared_values).clone(), row(moments.known_squared_sensitivities).clone()
    plans = [make(0.1).plan(moments) for _ in range(2)]
    assert torch.equal(powers(plans[0]), powers(plans[1]))
    assert torch.equal(row(moments.squared_values), before[0])
    assert torch.equal(row(moments.known_squared_sensitivities), before[1])


@every_kind
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"scale": -0.1}, ValueError, "Parameter `scale`.*Found `scale = -0.1`"),
        ({"scale": float("nan")}, ValueError, "Parameter `scale`.*Found `scale = nan`"),
        ({"scale": float("inf")}, ValueError, "Parameter `scale`.*Found `scale = inf`"),
        ({"scale": True}, TypeError, "Parameter `scale` should be a number. Found bool"),
        ({"scale": "0.1"}, TypeError, "Parameter `scale` should be a number. Found str"),
        ({"scale": torch.tensor(0.1)}, TypeError, "Parameter `scale`.*Found Tensor"),
        ({"utility_budget": -1.0}, ValueError, "Parameter `utility_budget`.*-1.0"),
        ({"utility_budget": float("nan")}, ValueError, "Parameter `utility_budget`.*nan"),
        ({"target_error": 0.0}, ValueError, "Parameter `target_error`.*above 0.*= 0.0"),
        ({"target_error": float("inf")}, ValueError, "Parameter `target_error`.*inf"),
        ({}, ValueError, "Exactly one of.*'scale', 'utility_budget', 'target_error'.*none"),
        (
            {"scale": 0.1, "target_error": 1.0},
            ValueError,
            r"Exactly one of.*Found \['scale', 'target_error'\]",
        ),
    ],
)
def test_bad_arguments(
    make: Make, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make(**options)


@pytest.mark.parametrize("make", [v for k, v in KINDS.items() if "DP" in k])
def test_bad_clip(make: Make) -> None:
    kind = type(make(0.1))
    for clip in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=rf"Parameter `clip`.*Found `clip = {clip}`"):
            kind(0.1, clip=clip)


def test_moments_without_sensitivities() -> None:
    moments = Moments.of_values(SWEEPS[0].values(), input_size=10)
    assert float(powers(GradientNoise(0.1).plan(moments)).min()) == pytest.approx(0.01)
    assert float(powers(ClampedNoise(0.1).plan(moments)).min()) == pytest.approx(0.01)
    for defense in (
        OptimalNoise(0.1),
        OptimalClampedNoise(0.1),
        GradientNoise(target_error=1.0),
        ClampedNoise(target_error=1.0),
    ):
        with pytest.raises(ValueError, match=r"`moments` should hold sensitivities.*measure"):
            defense.plan(moments)
