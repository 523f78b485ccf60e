"""Specifications with and without amounts."""

import pytest

from gradveil import GradientNoise, OptimalPruning
from gradveil.audit._settings import MATCHED
from gradveil.audit.measure._matching import check_use, requested_defenses


def test_default_names_are_short_and_twins_go_together():
    names = [one.name for one in requested_defenses(MATCHED)]
    assert names == [
        "noise",
        "optimal noise",
        "noise with clamping",
        "optimal noise with clamping",
        "pruning",
        "optimal pruning",
        "noisy pruning",
        "optimal noisy pruning",
    ]


@pytest.mark.parametrize(
    ("spec", "missing"),
    [
        ("optimal-noise", {"scale"}),
        ("optimal-noise(cap=10.0)", {"scale"}),
        ("optimal-noise(0.1)", set()),
        ("clamped-noise", {"scale", "clip"}),
        ("clamped-noise(clip=0.5)", {"scale"}),
        ("clamped-noise(scale=0.5)", set()),
        ("gradient-pruning(noise=optimal-noise)", {"ratio", "noise"}),
        ("gradient-pruning(0.5, noise=optimal-noise)", {"noise"}),
        ("optimal-pruning(noise=gradient-noise(scale=0.1))", {"ratio"}),
        ("rounding(step=0.1)", set()),
        ("no-defense", set()),
    ],
)
def test_amounts_that_are_left_out_are_open(spec, missing):
    (one,) = requested_defenses([spec])
    assert one.open == missing


def test_amounts_that_are_given_stay():
    given = "optimal-pruning(ratio=0.7, noise=gradient-noise(scale=0.1))"
    one, other = requested_defenses([given, GradientNoise(0.3)])
    assert one.defense == OptimalPruning(0.7, noise=GradientNoise(0.1))
    assert other.defense.scale == 0.3


@pytest.mark.parametrize("spec", ["private-noise", "private-noise(clip=1.0)"])
def test_a_guarantee_is_not_matched(spec):
    with pytest.raises(ValueError, match=r"should have its amounts.*Found no .*noise_multiplier"):
        check_use(requested_defenses([spec]), "utility", None, None)
    (one,) = requested_defenses(["private-noise(noise_multiplier=2.0, clip=0.5)"])
    assert (one.name, one.open) == ("private noise", frozenset())


def test_equal_names_get_numbers():
    names = [one.name for one in requested_defenses(["gradient-noise(0.1)", "gradient-noise(0.2)"])]
    assert names == ["noise", "noise (2)"]


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="Did you mean `optimal-noise`"):
        requested_defenses(["optimal-nose"])
