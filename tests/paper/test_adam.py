"""The optimum for Adam: KKT, rivals at equal trace, its two limits."""

import pytest
import torch
from torch import Tensor

from gradveil import Moments
from paper.trainings import adam_variances, optimum
from tests.defenses.cases import SWEEPS, Sweep, moments_of, row
from tests.defenses.properties import perturbed

TRACES = (1e8, 1e2, 1.0, 1e-3)


def found(moments: Moments, trace: float) -> tuple[Tensor, Tensor, Tensor]:
    """v, g² and s² of the optimum at a trace, without floors and caps."""
    squares, slopes = dict(moments.squared_values), moments.known_squared_sensitivities
    ratios = {n: (slopes[n] / g2).sqrt() for n, g2 in squares.items()}
    return row(optimum(ratios, squares, trace)), row(squares), row(slopes)


def gain(squares: Tensor, variances: Tensor) -> float:
    """What Adam gains in a step: Σ g_i² / √(g_i² + v_i)."""
    return float((squares / (squares + variances).sqrt()).sum())


@pytest.mark.parametrize("sweep", SWEEPS[:1] + SWEEPS[6:], ids=str)
@pytest.mark.parametrize("trace", TRACES)
def test_kkt(sweep: Sweep, trace: float) -> None:
    """g_i²/(g_i² + v_i)^(3/2) = μ s_i²/v_i² with one μ for all entries, and the trace is met."""
    v, squares, slopes = found(sweep.moments(), trace)
    multipliers = squares / (squares + v) ** 1.5 * v.square() / slopes
    torch.testing.assert_close(
        multipliers, multipliers.mean().expand_as(multipliers), rtol=1e-6, atol=0.0
    )
    assert float((slopes / v).sum()) == pytest.approx(trace, rel=1e-6)


@pytest.mark.parametrize("trace", TRACES)
def test_no_noise_of_equal_trace_gains_more(trace: float) -> None:
    v, squares, slopes = found(SWEEPS[0].moments(), trace)
    for rival in (torch.ones_like(v), (slopes / squares).sqrt(), *perturbed(v)):
        equal = rival * float((slopes / rival).sum()) / trace
        assert gain(squares, equal) <= gain(squares, v) * (1 + 1e-9)


@pytest.mark.parametrize(("trace", "power"), [(1e18, None), (1e-20, 4)])
def test_the_limits_of_little_and_of_much_noise(trace: float, power: int | None) -> None:
    v, squares, slopes = found(SWEEPS[0].moments(), trace)
    g, s = squares.sqrt(), slopes.sqrt()
    ratios = v / (s * g.sqrt() if power is None else (s / g) ** power)
    torch.testing.assert_close(ratios, ratios.mean().expand_as(ratios), rtol=1e-3, atol=0.0)


def test_entries_without_sensitivity_or_value_are_hidden() -> None:
    values = {"w": torch.tensor([1.0, 0.0, 2.0, 3.0])}
    moments = moments_of(values, {"w": torch.tensor([1.0, 1.0, 0.0, 2.0])})
    variances = adam_variances(moments, 1.0)["w"]
    assert float(variances.min()) > 0
    assert bool(variances.isfinite().all())
