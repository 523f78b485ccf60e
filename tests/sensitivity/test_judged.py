"""What a plan promises is judged by sensitivities that it was not made from."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from gradveil import (
    GradientMessage,
    LocalUpdateMessage,
    Moments,
    OptimalNoise,
    OptimalPruning,
    measure,
)
from gradveil.defenses import GradientNoise
from gradveil.models import build_model
from gradveil.sensitivity import Sketch
from gradveil.theory import fisher_trace, gain_over_isotropic


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def update(lr: float = 2.0) -> tuple[LocalUpdateMessage, torch.Tensor]:
    """Five steps so large that what `AlongSteps` leaves out counts."""
    model = build_model("mlp", sizes=[6, 16, 3], activation="tanh").double()
    inputs = 2 * torch.randn(6, 6, generator=seeded(3), dtype=torch.float64)
    targets = torch.arange(6) % 3
    return LocalUpdateMessage(model, F.cross_entropy, targets, lr=lr, steps=5), inputs


def gradient() -> tuple[GradientMessage, torch.Tensor]:
    message, inputs = update()
    return GradientMessage(message.loss.model, F.cross_entropy, message.targets), inputs


def met(defense: OptimalNoise | OptimalPruning, seed: int) -> tuple[float, float]:
    """The true bound over the target, judged, and as the first estimates alone would have it."""
    message, inputs = update()
    exact = measure(message, inputs, "exact")
    moments = defense.observe(message, inputs, seeded(seed))[1]
    blind = replace(moments, second_squares=None)
    assert defense.target_error is not None
    first, second = (
        inputs.numel() / fisher_trace(exact, defense.plan(m)) / defense.target_error
        for m in (moments, blind)
    )
    return first, second


def test_a_target_for_an_update_is_met_in_the_mean() -> None:
    """It was 0.27 of the target: the estimates that made the plan said otherwise."""
    found = torch.tensor(
        [met(OptimalNoise(target_error=0.1, source="private"), seed) for seed in range(12)]
    )
    judged, blind = found.mean(0).tolist()
    assert judged == pytest.approx(1.0, abs=0.15)
    assert abs(blind - 1) > 2 * abs(judged - 1)


@pytest.mark.parametrize(
    "noise", [OptimalNoise(0.1, source="private"), GradientNoise(0.1)], ids=["optimal", "same"]
)
def test_a_target_that_pruning_meets_is_judged_too(noise: OptimalNoise) -> None:
    """It kept entries until its own estimates said enough: 0.005 of the target was true."""
    defense = OptimalPruning(target_error=0.02, noise=noise, source="private")
    found = torch.tensor([met(defense, seed) for seed in range(12)])
    assert float(found[:, 0].mean()) > 0.8


def test_the_gain_is_not_that_of_its_own_estimates() -> None:
    message, inputs = update()
    exact = measure(message, inputs, "exact")
    own, judged, true = [], [], []
    for seed in range(8):
        moments = measure(message, inputs, Sketch(2), generator=seeded(seed), judged=True)
        mechanism = OptimalNoise(0.1, source="private").plan(moments)
        own.append(gain_over_isotropic(moments, mechanism))
        judged.append(gain_over_isotropic(moments.judged(), mechanism))
        true.append(gain_over_isotropic(exact, mechanism))
    assert sum(judged) == pytest.approx(sum(true), rel=0.1)
    assert sum(own) > 1.3 * sum(true), (own, judged, true)


def test_the_second_measurement_is_unbiased_and_other() -> None:
    message, inputs = gradient()
    exact = measure(message, inputs, "exact")
    total = {
        name: torch.zeros_like(square) for name, square in exact.known_squared_sensitivities.items()
    }
    for seed in range(60):
        moments = measure(message, inputs, "per-example", generator=seeded(seed), judged=True)
        assert moments.second_squares is not None
        for name, square in moments.second_squares.items():
            assert not torch.equal(square, moments.known_squared_sensitivities[name])
            total[name] += square / 60
    for name, square in exact.known_squared_sensitivities.items():
        assert float(total[name].sum() / square.sum()) == pytest.approx(1.0, abs=0.05)


def test_exact_moments_judge_themselves() -> None:
    message, inputs = gradient()
    moments = measure(message, inputs, "exact", judged=True)
    assert moments.second_squares is None
    assert moments.judged() is moments


def test_a_defense_measures_twice_only_for_a_target() -> None:
    message, inputs = gradient()
    for defense, twice in (
        (OptimalNoise(0.1, source="private"), False),
        (OptimalNoise(target_error=0.1, source="private"), True),
        (GradientNoise(target_error=0.1, source="private"), True),
        (OptimalPruning(0.5, noise=OptimalNoise(target_error=0.1), source="private"), True),
    ):
        moments = defense.observe(message, inputs, seeded(0))[1]
        assert (moments.second_squares is not None) is twice


def test_sums_keep_it() -> None:
    message, inputs = gradient()
    one, other = (measure(message, inputs, generator=seeded(s), judged=True) for s in (0, 1))
    mean = Moments.average([one, other])
    assert mean.second_squares is not None
    assert one.second_squares is not None
    assert other.second_squares is not None
    for name, square in mean.second_squares.items():
        expected = (one.second_squares[name] + other.second_squares[name]) / 2
        torch.testing.assert_close(square, expected)
    clipped = one.clipped(1e-3)
    assert clipped.second_squares is not None
    outside = {n: v.abs() >= 1e-3 for n, v in message(inputs).items()}
    assert all(not bool(s[outside[n]].any()) for n, s in clipped.second_squares.items())
