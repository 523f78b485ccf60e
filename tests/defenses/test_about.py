"""What defenses say of themselves, so that nobody has to read their names."""

import pytest

from gradveil import (
    ClampedNoise,
    Defense,
    GradientNoise,
    GradientPruning,
    NoDefense,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    Rounding,
)

NOISE = GradientNoise(0.1)
ROWS = [
    (NoDefense(), "no defense", "none", None, None),
    (NOISE, "noise", "noise", None, "scale"),
    (OptimalNoise(0.1, source="private"), "optimal noise", "noise", GradientNoise, "scale"),
    (ClampedNoise(0.1), "noise with clamping", "clamped noise", None, "scale"),
    (
        OptimalClampedNoise(0.1, source="private"),
        "optimal noise with clamping",
        "clamped noise",
        ClampedNoise,
        "scale",
    ),
    (GradientPruning(0.9), "pruning", "pruning", None, "ratio"),
    (OptimalPruning(0.9, source="private"), "optimal pruning", "pruning", GradientPruning, "ratio"),
    (GradientPruning(0.9, noise=NOISE), "noisy pruning", "noisy pruning", None, "ratio"),
    (
        OptimalPruning(0.9, noise=NOISE, source="private"),
        "optimal noisy pruning",
        "noisy pruning",
        GradientPruning,
        "ratio",
    ),
    (Rounding(0.1), "rounding", "rounding", None, "step"),
    (OptimalRounding(0.1, source="private"), "optimal rounding", "rounding", Rounding, "step"),
]


@pytest.mark.parametrize(("defense", "label", "family", "twin", "amount"), ROWS)
def test_every_defense_says_what_it_is(
    defense: Defense, label: str, family: str, twin: type | None, amount: str | None
) -> None:
    about = defense.about
    assert (about.label, about.family, about.twin) == (label, family, twin)
    assert defense.about.amount == amount
    assert (about.family == "none") == isinstance(defense, NoDefense)


def test_noise_is_in_the_label_whatever_it_is() -> None:
    class Cut(GradientPruning, label="cuts"):
        pass

    assert [Cut(0.9).about.label, Cut(0.9, noise=NOISE).about.label] == ["cuts", "cuts with noise"]


def test_the_threshold_of_clamping_is_asked_for() -> None:
    assert [
        d.about.clamp
        for d in (ClampedNoise(0.1, clip=2.0), OptimalClampedNoise(0.1, clip=3.0, source="private"))
    ] == [2.0, 3.0]
    assert OptimalNoise(0.1, source="private").about.clamp is None


def test_a_target_error_is_asked_for() -> None:
    target = GradientNoise(target_error=1.0, source="private")
    assert target.about.needs.judged
    assert GradientPruning(0.5, noise=target).about.needs.judged
    assert GradientPruning(target_error=1.0, noise=NOISE).about.needs.judged
    assert not GradientPruning(0.5, noise=NOISE).about.needs.judged
    assert not OptimalNoise(0.1, source="private").about.needs.judged


def test_a_users_defense_is_called_by_the_words_of_its_class() -> None:
    class LouderNoise(OptimalNoise):
        pass

    class MyDPThing(Defense):
        pass

    class Titled(Defense, label="a name of its own"):
        pass

    louder = LouderNoise(0.1)
    said = louder.about
    assert (said.label, said.family, said.twin) == ("louder noise", "noise", GradientNoise)
    own = MyDPThing().about
    assert (own.label, own.family, own.twin) == ("my DP thing", "my DP thing", None)
    assert (Titled().about.label, Titled().about.family) == (
        "a name of its own",
        "a name of its own",
    )
