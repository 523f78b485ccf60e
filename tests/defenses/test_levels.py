"""Appendix B: what happens where gradients are zero or nearly so."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from gradveil import (
    GradientMessage,
    GradientNoise,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    measure,
)
from tests.zoo import named

from .cases import Sweep, moments_of, powers, row


def ratios(values: list[float], slopes: list[float], **options: Any) -> list[float]:
    """The planned variances relative to that of the last entry."""
    moments = moments_of({"w": torch.tensor(values).double()}, {"w": torch.tensor(slopes).double()})
    found = powers(OptimalNoise(0.1, **options).plan(moments))
    return (found / found[-1]).tolist()


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_in_the_papers_form_no_sensitivity_gets_no_noise(value: float) -> None:
    assert ratios([value, 1.0], [0.0, 1.0], least=0.0)[0] == 0.0


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_no_sensitivity_gets_the_mean_level(value: float) -> None:
    """Which entries are without sensitivity is information, too: they must not stand out."""
    slopes = [0.0, 1.0, 2.0, 4.0, 1.0]
    assert ratios([value, 1.0, 1.0, 1.0, 1.0], slopes)[0] == pytest.approx(2.0)


def test_no_value_gets_the_mean_level() -> None:
    """An entry that is exactly 0 would otherwise have the largest level of all."""
    found = ratios([0.0, 1.0, 1.0, 1.0], [5.0, 1.0, 4.0, 1.0])
    assert found[0] == pytest.approx(2.0)


def test_no_tensor_is_far_below_the_others() -> None:
    """A head behind `detach`, beside a path of 1e-6 that autograd sees: it was next to bare."""
    values = {"head": torch.ones(4).double(), "rest": torch.ones(9).double()}
    slopes = {"head": torch.full((4,), 1e-12).double(), "rest": torch.ones(9).double()}
    for granularity in ("parameter", "layer"):
        std = OptimalNoise(1.0, granularity=granularity).plan(moments_of(values, slopes)).std
        assert isinstance(std, dict)
        assert float(std["head"].min() / std["rest"].median()) == pytest.approx(0.01)


@pytest.mark.parametrize("scale", [1e-18, 1e-15, 1e15, 1e18])
@pytest.mark.parametrize("kind", [OptimalNoise, GradientNoise, OptimalClampedNoise])
def test_scales_at_the_ends_of_float32(kind: type, scale: float) -> None:
    sweep = Sweep("plain")
    values = {n: v.float() for n, v in sweep.values().items()}
    slopes = {n: s.sqrt().float() for n, s in sweep.moments().known_squared_sensitivities.items()}
    found = kind(scale).plan(moments_of(values, slopes)).std
    assert all(bool((std > 0).all()) for std in found.values())
    squares = torch.cat([std.flatten().double() for std in found.values()]).square()
    assert float(squares.mean().sqrt()) == pytest.approx(scale, rel=1e-4)


def test_no_level_is_below_a_share_of_the_median() -> None:
    found = ratios([1.0] * 5, [1e-9, 1e-3, 0.9, 1.5, 1.0], least=0.5)
    assert found == pytest.approx([0.25 * 0.9, 0.25 * 0.9, 0.9, 1.5, 1.0])


def test_levels_are_compared_inside_of_a_tensor() -> None:
    values = {"a": torch.ones(3).double(), "b": torch.ones(3).double()}
    slopes = {"a": torch.tensor([1.0, 2.0, 0.0]).double(), "b": 100 * torch.ones(3).double()}
    std = OptimalNoise(1.0, least=0.25).plan(moments_of(values, slopes)).std
    assert isinstance(std, dict)
    assert float((std["a"][2] / std["a"][0]).square()) == pytest.approx(1.5)
    assert float((std["b"][0] / std["a"][0]).square()) == pytest.approx(100.0)


def test_the_level_of_a_silent_entry_in_a_large_tensor() -> None:
    generator = torch.Generator().manual_seed(0)
    slopes = torch.rand(3 * 2**15, generator=generator).double() + 0.5
    slopes[7] = 0.0
    moments = moments_of({"w": torch.ones(len(slopes)).double()}, {"w": slopes})
    found = powers(OptimalNoise(1.0).plan(moments))
    others = torch.cat([found[:7], found[8:]])
    assert float(found[7] / others.mean()) == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("value", [1e-12, 1e-7, 5e-3])
def test_small_gradients_are_capped(value: float) -> None:
    assert ratios([value, 1.0, 1.0], [1.0, 1.0, 1.0])[0] == pytest.approx(100.0)


@pytest.mark.parametrize("cap", [1.0, 7.0, 100.0, 1e5])
def test_cap_is_the_largest_ratio_over_the_median(cap: float) -> None:
    found = ratios([1e-3, 1e-9, 1.0, 0.5, 1.0], [1.0] * 5, cap=cap, floor=1e-6, least=0.0)
    median, floor = 2.0, 1e-6 * (2.25 / 5) ** 0.5
    limit = cap * median
    expected = [min(1e3, limit), min(1 / floor, limit), 1.0, min(2.0, limit), 1.0]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("cap", [1e20, 1e200, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cap_beyond_all_ratios_changes_nothing(cap: float, dtype: torch.dtype) -> None:
    sweep = Sweep("plain")
    values = {n: v.to(dtype) for n, v in sweep.values().items()}
    slopes = {n: s.sqrt().to(dtype) for n, s in sweep.moments().known_squared_sensitivities.items()}
    moments = moments_of(values, slopes)
    plans = [powers(OptimalNoise(0.1, cap=c).plan(moments)) for c in (cap, 1e6)]
    assert torch.equal(*plans)


@pytest.mark.parametrize("floor", [1e-3, 0.1])
def test_floor_is_the_least_denominator(floor: float) -> None:
    values = [0.0, 1e-4, 0.05, 0.5, 1.0]
    found = ratios(values, [1.0] * 5, cap=float("inf"), floor=floor, least=0.0)
    least = floor * (sum(v**2 for v in values) / 5) ** 0.5
    assert found == pytest.approx([1 / max(v, least) for v in values])


@pytest.mark.parametrize("values", [1e-12, 1e-6, 1e6, 1e12])
@pytest.mark.parametrize("slopes", [1e-12, 1e-6, 1e6, 1e12])
@pytest.mark.parametrize("kind", [OptimalNoise, OptimalRounding])
def test_the_plan_does_not_depend_on_units(kind: type, values: float, slopes: float) -> None:
    """Cap and floor are relative: the loss times a factor, or inputs in other units."""
    sweep = Sweep("wide", decades=2.0)
    plan = kind(0.1).plan(sweep.moments())
    scaled = moments_of(
        {n: values * v for n, v in sweep.values().items()},
        {n: slopes * s.sqrt() for n, s in sweep.moments().known_squared_sensitivities.items()},
    )
    other = kind(0.1).plan(scaled)
    levels = [getattr(p, "std", None) or p.step for p in (plan, other)]
    torch.testing.assert_close(row(levels[1]), row(levels[0]), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_what_is_pruned_does_not_depend_on_units(size: float) -> None:
    sweep = Sweep("wide", decades=2.0)
    scaled = moments_of(
        {n: size * v for n, v in sweep.values().items()},
        {n: size * s.sqrt() for n, s in sweep.moments().known_squared_sensitivities.items()},
    )
    keeps = [OptimalPruning(0.5).plan(m).keep for m in (sweep.moments(), scaled)]
    assert torch.equal(row(keeps[0]), row(keeps[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-15, 1e15])
def test_without_floor_and_cap_noise_stays_finite(dtype: torch.dtype, size: float) -> None:
    values = {"w": torch.tensor([0.0, 1e-10, 1.0], dtype=dtype) * size}
    moments = moments_of(values, {"w": torch.tensor([1.0, 1.0, 1.0], dtype=dtype)})
    mechanism = OptimalNoise(0.1, cap=float("inf"), floor=0.0).plan(moments)
    assert bool(powers(mechanism).isfinite().all())
    assert float(powers(mechanism).mean()) == pytest.approx(0.01, rel=1e-5)


def test_dead_units_of_a_relu_network_do_not_stand_out() -> None:
    case = named("relu_in_place")
    message: GradientMessage = case.message()
    moments = measure(message, case.inputs(), "exact")
    silent = {n: s == 0 for n, s in moments.known_squared_sensitivities.items()}
    assert any(bool(mask.any()) for mask in silent.values()), "the case should have dead units"
    for defense in (OptimalNoise(0.1), OptimalClampedNoise(0.1), OptimalNoise(0.1, cap=1e9)):
        assert bool((powers(defense.plan(moments)) > 0).all())
        papers = replace(defense, least=0.0).plan(moments).std
        assert isinstance(papers, dict)
        assert all(torch.equal(papers[n] == 0, mask) for n, mask in silent.items())


def test_unused_layers_get_noise_and_are_pruned_first() -> None:
    case = named("unused")
    moments = measure(case.message(), case.inputs(), "exact")
    for granularity in ("parameter", "layer"):
        std = OptimalNoise(0.1, granularity=granularity).plan(moments).std
        assert isinstance(std, dict)
        assert float(std["idle.weight"].min()) > 0
        assert float(std["idle.bias"].min()) > 0
    keep = OptimalPruning(6 / moments.size).plan(moments).keep
    assert isinstance(keep, dict)
    assert {n for n, mask in keep.items() if float(mask.min()) == 0.0} == {
        "idle.weight",
        "idle.bias",
    }


KINDS: list[type] = [OptimalNoise, OptimalClampedNoise]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"granularity": "tensor"}, ValueError, "`granularity`.*'layer'.*Found.*'tensor'"),
        ({"cap": 0.0}, ValueError, "Parameter `cap`.*above 0.*= 0.0"),
        ({"cap": float("nan")}, ValueError, "Parameter `cap`.*nan"),
        ({"cap": True}, TypeError, "Parameter `cap` should be a number"),
        ({"floor": -1e-6}, ValueError, "Parameter `floor`.*at least 0.*-1e-06"),
        ({"floor": float("inf")}, ValueError, "Parameter `floor`.*inf"),
        ({"least": -0.1}, ValueError, "Parameter `least`.*-0.1"),
        ({"least": 1.5}, ValueError, "Parameter `least`.*1.5"),
    ],
)
def test_bad_options(
    kind: type, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        kind(0.1, **options)


@pytest.mark.parametrize("options", [{"granularity": "neuron"}, {"floor": -1.0}])
def test_bad_options_of_pruning(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"Parameter `{next(iter(options))}`"):
        OptimalPruning(0.5, **options)
