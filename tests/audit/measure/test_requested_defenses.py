"""Specifications with and without amounts."""

import pytest
from torch.nn.functional import cross_entropy

from gradveil import GradientNoise, OptimalPruning
from gradveil.audit.measure._strengths import axes_of, parse_defense
from gradveil.catalog import build_defense
from tests.audit.small import GIVEN, make_subject, table, table_model


def axes(*requested):
    return axes_of(requested, make_subject(table_model(), cross_entropy, table(4)))


def test_default_names_are_short_and_twins_go_together():
    names = [one.name for one in axes(*GIVEN)]
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
        ("rounding", {"step"}),
        ("no-defense", set()),
    ],
)
def test_amounts_that_are_left_out_are_open(spec, missing):
    (one,) = axes(spec)
    assert parse_defense(spec)[0].missing.keys() == missing
    assert bool(one.swept) == bool(missing)


def test_amounts_that_are_given_stay():
    given = "optimal-pruning(ratio=0.7, noise=gradient-noise(scale=0.1))"
    one, other = (build_defense(axis.at(0.0)) for axis in axes(given, GradientNoise(0.3)))
    assert one == OptimalPruning(0.7, noise=GradientNoise(0.1))
    assert other == GradientNoise(0.3)


def test_equal_names_get_numbers():
    names = [one.name for one in axes("gradient-noise(0.1)", "gradient-noise(0.2)")]
    assert names == ["noise", "noise (2)"]


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="Did you mean `optimal-noise`"):
        parse_defense("optimal-nose")
