"""What defenses say of themselves, so that nobody has to read their names."""

import pytest

from gradveil import (
    DPSGD,
    Cached,
    Defense,
    GradientNoise,
    GradientPruning,
    NoDefense,
    OptimalDPSGD,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    Rounding,
)

NOISE = GradientNoise(0.1)
ROWS = [
    (NoDefense(), "no defense", "none", None, None),
    (NOISE, "noise", "noise", None, "scale"),
    (OptimalNoise(0.1, plan="private"), "optimal noise", "noise", GradientNoise, "scale"),
    (DPSGD(0.1), "noise with clamping", "clamped noise", None, "scale"),
    (
        OptimalDPSGD(0.1, plan="private"),
        "optimal noise with clamping",
        "clamped noise",
        DPSGD,
        "scale",
    ),
    (GradientPruning(0.9), "pruning", "pruning", None, "ratio"),
    (OptimalPruning(0.9, plan="private"), "optimal pruning", "pruning", GradientPruning, "ratio"),
    (GradientPruning(0.9, noise=NOISE), "noisy pruning", "noisy pruning", None, "ratio"),
    (
        OptimalPruning(0.9, noise=NOISE, plan="private"),
        "optimal noisy pruning",
        "noisy pruning",
        GradientPruning,
        "ratio",
    ),
    (Rounding(0.1), "rounding", "rounding", None, "step"),
    (OptimalRounding(0.1, plan="private"), "optimal rounding", "rounding", Rounding, "step"),
    (
        Cached(OptimalNoise(0.1, plan="private")),
        "cached optimal noise",
        "noise",
        GradientNoise,
        None,
    ),
]


@pytest.mark.parametrize(("defense", "label", "family", "twin", "amount"), ROWS)
def test_every_defense_says_what_it_is(
    defense: Defense, label: str, family: str, twin: type | None, amount: str | None
) -> None:
    assert (defense.label, defense.family, defense.twin) == (label, family, twin)
    assert defense.amount_name == amount
    assert defense.is_undefended == isinstance(defense, NoDefense)


def test_the_threshold_of_clamping_is_asked_for() -> None:
    assert [
        d.clip for d in (DPSGD(0.1, clip=2.0), OptimalDPSGD(0.1, clip=3.0, plan="private"))
    ] == [2.0, 3.0]
    assert Cached(OptimalDPSGD(0.1, clip=3.0, plan="private")).clip == 3.0
    assert OptimalNoise(0.1, plan="private").clip is None


@pytest.mark.parametrize("wrap", [lambda d: d, Cached])
def test_a_target_error_is_asked_for(wrap: type) -> None:
    target = GradientNoise(target_error=1.0, plan="private")
    assert wrap(target).has_target_error
    assert wrap(GradientPruning(0.5, noise=target)).has_target_error
    assert wrap(GradientPruning(target_error=1.0, noise=NOISE)).has_target_error
    assert not wrap(GradientPruning(0.5, noise=NOISE)).has_target_error
    assert not wrap(OptimalNoise(0.1, plan="private")).has_target_error


def test_a_users_defense_is_called_by_the_words_of_its_class() -> None:
    class LouderNoise(OptimalNoise):
        pass

    class MyDPThing(Defense):
        pass

    class Titled(Defense):
        label = "a name of its own"

    louder = LouderNoise(0.1)
    assert (louder.label, louder.family, louder.twin) == ("louder noise", "noise", GradientNoise)
    own = MyDPThing()
    assert (own.label, own.family, own.twin) == ("my DP thing", "my DP thing", None)
    assert (Titled().label, Titled().family) == ("a name of its own", "a name of its own")
    assert not own.is_undefended
