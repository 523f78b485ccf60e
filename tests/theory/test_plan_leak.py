"""Erratum 5: noise levels that depend on the private batch reveal something by themselves."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jacfwd

from gradveil import (
    Defense,
    GradientNoise,
    NoDefense,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    Rounding,
    measure,
)
from gradveil.messages import Message
from gradveil.sensitivity import Exact, Sketch
from gradveil.theory import plan_information, plan_information_trace
from tests.defenses.cases import FREE, batch
from tests.defenses.cases import message as smooth
from tests.zoo import named

from .oracles import (
    dense_information,
    global_generator_untouched,
    log_variances,
    normal,
    row,
    seeded,
)

SCALE = 0.3
MESSAGES: dict[str, tuple[Message, Tensor]] = {"smooth": (smooth, batch())} | {
    name: (named(name).message(), named(name).inputs())
    for name in ("mlp", "scalar", "unused", "relu_in_place")
}


def optimal(**options: Any) -> OptimalNoise:
    return OptimalNoise(SCALE, **{**FREE, **options})


@pytest.mark.parametrize("name", MESSAGES)
def test_it_is_that_of_the_definition(name: str) -> None:
    """½ Σ_i ∇log Σ_ii ∇log Σ_iiᵀ with Σ(x) differentiated in another way and by another path."""
    message, inputs = MESSAGES[name]
    slopes = jacfwd(log_variances(message, inputs, SCALE))(inputs).reshape(-1, inputs.numel())
    found = plan_information(message, inputs, optimal())
    assert found.shape == (inputs.numel(), inputs.numel())
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, 0.5 * slopes.T @ slopes, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_clamped_entries_add_nothing(clip: float) -> None:
    inputs = batch()
    slopes = jacfwd(log_variances(smooth, inputs, SCALE, clip))(inputs).reshape(-1, 6)
    assert len(slopes) < len(row(smooth(inputs)))
    found = plan_information(smooth, inputs, OptimalClampedNoise(SCALE, clip=clip, **FREE))
    torch.testing.assert_close(found, 0.5 * slopes.T @ slopes, rtol=1e-8, atol=1e-8)


def test_with_it_the_information_is_that_of_the_whole_gaussian() -> None:
    """KL(N(x) ‖ N(x+h)) + KL(N(x) ‖ N(x-h)) = hᵀ J h + O(h⁴), with J of mean and covariance."""
    inputs, defense = batch(), optimal()
    levels = log_variances(smooth, inputs, SCALE)
    mechanism = defense.plan(measure(smooth, inputs, "exact"))
    data = dense_information(smooth, inputs, mechanism)
    whole = data + plan_information(smooth, inputs, defense)

    def divergence(step: Tensor) -> Tensor:
        ratio = levels(inputs) - levels(inputs + step)
        shift = row(smooth(inputs)) - row(smooth(inputs + step))
        moved = shift.square() * (-levels(inputs + step)).exp()
        return 0.5 * (ratio.exp() - 1 - ratio + moved).sum()

    for seed in range(5):
        step = 1e-4 * normal(2, 3, seed=seed)
        found = divergence(step) + divergence(-step)
        expected = step.flatten() @ whole @ step.flatten()
        # O(h²) of the step, and 1e-16 over (1e-4)² from the differences of logarithms
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=0.0)
        assert float(step.flatten() @ data @ step.flatten()) < 0.99 * float(expected)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_it_does_not_depend_on_the_scale(scale: float) -> None:
    found = plan_information(smooth, batch(), OptimalNoise(scale, **FREE))
    torch.testing.assert_close(found, plan_information(smooth, batch(), optimal()))


@pytest.mark.parametrize(
    "defense", [GradientNoise(0.3), NoDefense(), OptimalPruning(1.0, noise=OptimalNoise(0.3))]
)
def test_constant_levels_reveal_nothing(defense: Defense) -> None:
    assert float(plan_information(smooth, batch(), defense).abs().max()) == 0.0
    assert plan_information_trace(smooth, batch(), defense, generator=seeded())[0] == 0.0


def test_a_noise_budget_makes_even_isotropic_noise_depend_on_the_data() -> None:
    found = plan_information(smooth, batch(), GradientNoise(utility_budget=1.0))
    assert float(found.trace()) > 0


def test_fewer_levels_reveal_less() -> None:
    by_entry = plan_information(smooth, batch(), optimal()).trace()
    by_layer = plan_information(smooth, batch(), optimal(granularity="layer")).trace()
    assert 0 < float(by_layer) < float(by_entry)


@pytest.mark.parametrize("cap", [1e-6, 1.0])
def test_a_tight_cap_reveals_less(cap: float) -> None:
    """Where all ratios are capped the levels are constant."""
    found = plan_information(smooth, batch(), optimal(cap=cap)).trace()
    assert float(found) < float(plan_information(smooth, batch(), optimal()).trace())
    assert (float(found) == 0.0) == (cap == 1e-6)


@pytest.mark.parametrize("estimator", [Exact(), Sketch(probes=3)], ids=["exact", "sketch"])
def test_trace_agrees_within_its_standard_error(estimator: Any) -> None:
    expected = float(plan_information(smooth, batch(), optimal(), estimator).trace())
    found, error = plan_information_trace(smooth, batch(), optimal(), 80, seeded(1), estimator)
    assert abs(found - expected) < 4 * error
    assert 0 < error < 0.4 * expected


def test_trace_takes_its_randomness_from_the_generator() -> None:
    with global_generator_untouched():
        first, again, other = (
            plan_information_trace(smooth, batch(), optimal(), 4, seeded(s)) for s in (1, 1, 2)
        )
        assert first == again
        assert first != other
        plan_information_trace(smooth, batch(), optimal(), 2)
        plan_information(smooth, batch(), optimal())


def test_one_probe_has_no_standard_error() -> None:
    found, error = plan_information_trace(smooth, batch(), optimal(), 1, seeded())
    assert found > 0
    assert error != error


@pytest.mark.parametrize("measure_it", [plan_information, plan_information_trace])
def test_a_defense_without_noise_levels_is_refused(measure_it: Any) -> None:
    with pytest.raises(ValueError, match=r"Parameter `defense` should add noise. Found Rounding"):
        measure_it(smooth, batch(), Rounding(0.1))
