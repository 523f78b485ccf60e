from typing import Any

import pytest
import torch

from gradveil import OptimalNoise, OptimalRounding, Rounding

from .cases import SWEEPS, Sweep, row


def steps_of(defense: Rounding | OptimalRounding, sweep: Sweep) -> torch.Tensor:
    step = defense.plan(sweep.moments()).step
    assert isinstance(step, dict)
    return row(step)


def test_one_grid_for_all() -> None:
    assert set(steps_of(Rounding(0.25), SWEEPS[0]).tolist()) == {0.25}
    sent = Rounding(0.25).plan(SWEEPS[0].moments()).apply(SWEEPS[0].values())
    torch.testing.assert_close(row(sent) * 4, torch.round(row(sent) * 4))


@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
@pytest.mark.parametrize("granularity", ["parameter", "layer"])
def test_optimal_steps_have_the_root_mean_square(sweep: Sweep, granularity: str) -> None:
    steps = steps_of(OptimalRounding(0.25, granularity=granularity), sweep)
    assert float(steps.square().mean()) == pytest.approx(0.0625, rel=1e-10)


def test_optimal_steps_follow_the_optimal_noise() -> None:
    std = OptimalNoise(0.25).plan(SWEEPS[0].moments()).std
    assert isinstance(std, dict)
    assert torch.equal(steps_of(OptimalRounding(0.25), SWEEPS[0]), row(std))


def test_optimal_rounding_sends_points_of_each_grid() -> None:
    sweep, defense = SWEEPS[0], OptimalRounding(0.25)
    sent = row(defense.plan(sweep.moments()).apply(sweep.values()))
    counts = sent / steps_of(defense, sweep)
    torch.testing.assert_close(counts, torch.round(counts), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [Rounding, OptimalRounding])
@pytest.mark.parametrize("step", [0.0, -1.0, float("nan"), float("inf"), "fine", True])
def test_bad_steps(kind: Any, step: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"Parameter `step` should be.*Found"):
        kind(step)
