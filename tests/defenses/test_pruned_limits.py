"""What pruning says of the values that it did not send."""

import pytest
import torch

from gradveil import (
    ClampedNoise,
    GradientNoise,
    GradientPruning,
    NoDefense,
    OptimalNoise,
    OptimalPruning,
    Rounding,
)
from gradveil.defenses import Defense
from gradveil.sensitivity import Moments

SENT = torch.tensor([3.0, 0.0, -2.0, 5.0])
PRUNED = SENT == 0


def test_magnitude_pruning_shows_its_threshold():
    assert GradientPruning(0.25).pruned_limits(SENT, PRUNED, None).tolist() == [2.0] * 4
    noisy = GradientPruning(0.25, noise=GradientNoise(0.1))
    assert noisy.pruned_limits(SENT, PRUNED, None).tolist() == [3.0] * 4


def test_optimal_pruning_shows_its_threshold_on_sensitivities():
    sensitivity = torch.tensor([1.0, 8.0, 1.0, 1.0])
    limits = OptimalPruning(0.25, source="private").pruned_limits(SENT, PRUNED, sensitivity)
    assert limits.tolist() == pytest.approx([4.5, 36.0, 4.5, 4.5])  # 1.5 s / (1/3)
    sensitivity[1] = 0.08
    flat = OptimalPruning(0.25, source="private").pruned_limits(SENT, PRUNED, sensitivity)
    assert flat[1] == 3.0  # the median of what was kept
    assert bool(
        OptimalPruning(0.25, source="private").pruned_limits(SENT, PRUNED, None).isinf().all()
    )


@pytest.mark.parametrize("seed", range(5))
def test_no_value_that_magnitude_pruning_cut_is_beyond_its_limit(seed):
    values = {"w": torch.randn(50, generator=torch.Generator().manual_seed(seed))}
    defense = GradientPruning(0.6)
    sent = defense.plan(Moments.of_values(values, 1)).apply(values)["w"]
    limits = defense.pruned_limits(sent, sent == 0, None)
    assert bool((values["w"].abs() <= limits)[sent == 0].all())


@pytest.mark.parametrize("defense", [NoDefense(), GradientNoise(0.1), Rounding(0.1)])
def test_other_defenses_say_nothing_of_a_zero(defense):
    assert bool(defense.pruned_limits(SENT, PRUNED, None).isinf().all())


@pytest.mark.parametrize(
    ("defense", "varies"),
    [
        (NoDefense(), False),
        (Rounding(0.1), False),
        (GradientNoise(0.1), False),
        (GradientNoise(utility_budget=1.0, source="private"), True),
        (ClampedNoise(0.1, clip=1.0), False),
        (OptimalNoise(0.1, source="private"), True),
        (GradientPruning(0.5), False),
        (GradientPruning(0.5, noise=OptimalNoise(0.1)), True),
        (OptimalPruning(0.5, source="private"), True),
    ],
)
def test_which_plans_an_attacker_makes_again(defense: Defense, varies: bool):
    assert defense.about.varies is varies
