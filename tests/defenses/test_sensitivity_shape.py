"""Appendix B: what happens where gradients are zero or nearly so."""

from typing import Any

import pytest
import torch

from gradveil import (
    GradientMessage,
    OptimalDPSGD,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    measure,
)
from gradveil.defenses import _sensitivity_shape
from tests.zoo import named

from .cases import Sweep, moments_of, powers


def ratios(values: list[float], slopes: list[float], **options: Any) -> list[float]:
    """The planned variances relative to that of the last entry."""
    moments = moments_of({"w": torch.tensor(values).double()}, {"w": torch.tensor(slopes).double()})
    found = powers(OptimalNoise(0.1, **options).plan(moments))
    return (found / found[-1]).tolist()


def test_no_gradient_and_no_sensitivity_gets_no_noise() -> None:
    assert ratios([0.0, 1.0], [0.0, 1.0])[0] == 0.0


def test_no_sensitivity_gets_no_noise_whatever_the_value() -> None:
    assert ratios([3.0, 1.0], [0.0, 1.0])[0] == 0.0


@pytest.mark.parametrize("value", [0.0, 1e-12, 1e-7, 5e-3])
def test_small_gradients_are_capped(value: float) -> None:
    assert ratios([value, 1.0], [1.0, 1.0])[0] == pytest.approx(100.0)


@pytest.mark.parametrize("cap", [1.0, 7.0, 100.0, 1e5])
def test_cap_is_the_largest_ratio(cap: float) -> None:
    found = ratios([1e-3, 1e-9, 0.5, 1.0], [1.0] * 4, cap=cap)
    assert found == pytest.approx([min(1e3, cap), min(1e6, cap), min(2.0, cap), 1.0])


@pytest.mark.parametrize("cap", [1e20, 1e200, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cap_beyond_all_ratios_changes_nothing(cap: float, dtype: torch.dtype) -> None:
    sweep = Sweep("plain")
    values = {n: v.to(dtype) for n, v in sweep.values().items()}
    slopes = {n: s.sqrt().to(dtype) for n, s in sweep.moments().sensitivities.items()}
    moments = moments_of(values, slopes)
    plans = [powers(OptimalNoise(0.1, cap=c).plan(moments)) for c in (cap, 1e6)]
    assert torch.equal(*plans)


@pytest.mark.parametrize("floor", [1e-3, 0.1])
def test_floor_is_the_least_denominator(floor: float) -> None:
    found = ratios([0.0, 1e-4, 0.05, 0.5, 1.0], [1.0] * 5, cap=float("inf"), floor=floor)
    assert found == pytest.approx([1 / max(v, floor) for v in (0.0, 1e-4, 0.05, 0.5, 1.0)])


def test_default_floor_is_the_constant_of_the_paper() -> None:
    assert ratios([0.0, 1.0], [1.0, 1.0], cap=float("inf"))[0] == pytest.approx(1e6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-15, 1e15])
def test_without_floor_and_cap_noise_stays_finite(dtype: torch.dtype, size: float) -> None:
    values = {"w": torch.tensor([0.0, 1e-10, 1.0], dtype=dtype) * size}
    moments = moments_of(values, {"w": torch.tensor([1.0, 1.0, 1.0], dtype=dtype)})
    mechanism = OptimalNoise(0.1, cap=float("inf"), floor=0.0).plan(moments)
    assert bool(powers(mechanism).isfinite().all())
    assert float(powers(mechanism).mean()) == pytest.approx(0.01, rel=1e-5)


@pytest.mark.parametrize("granularity", ["parameter", "layer"])
def test_large_tensors_are_taken_in_pieces(
    granularity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = Sweep("plain").moments()
    defense = OptimalNoise(0.1, granularity=granularity)
    whole = powers(defense.plan(moments))
    monkeypatch.setattr(_sensitivity_shape, "PIECE", 1)
    assert torch.equal(powers(defense.plan(moments)), whole)


def test_dead_units_of_a_relu_network_get_no_noise() -> None:
    case = named("relu_in_place")
    message: GradientMessage = case.message()
    moments = measure(message, case.inputs(), "exact")
    silent = {n: s == 0 for n, s in moments.sensitivities.items()}
    assert any(bool(mask.any()) for mask in silent.values()), "the case should have dead units"
    for defense in (OptimalNoise(0.1), OptimalDPSGD(0.1), OptimalNoise(0.1, cap=1e9)):
        std = defense.plan(moments).std
        assert isinstance(std, dict)
        assert all(torch.equal(std[n] == 0, mask) for n, mask in silent.items())


def test_unused_layers_get_no_noise_and_are_pruned_first() -> None:
    case = named("unused")
    moments = measure(case.message(), case.inputs(), "exact")
    for granularity in ("parameter", "layer"):
        std = OptimalNoise(0.1, granularity=granularity).plan(moments).std
        assert isinstance(std, dict)
        assert float(std["idle.weight"].abs().sum() + std["idle.bias"].abs().sum()) == 0.0
    keep = OptimalPruning(6 / moments.size).plan(moments).keep
    assert isinstance(keep, dict)
    assert {n for n, mask in keep.items() if float(mask.min()) == 0.0} == {
        "idle.weight",
        "idle.bias",
    }


KINDS: list[type] = [OptimalNoise, OptimalDPSGD, OptimalRounding]


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
