"""Verdicts say what was measured, and no more."""

from dataclasses import replace

import pytest

from gradveil.audit._result import BoundResult, Leak, Point, Promise, RunResult, ToldApart
from gradveil.audit.measure._attacks import attack_result
from gradveil.audit.report import verdict
from gradveil.audit.report._words import KNOWS_MORE
from gradveil.scoring import Interval

BOUND = Promise(
    utility_first=1.0,
    utility_second=0.0,
    bound=BoundResult("full", "Gaussian", 0.05, 0.001, 0.02, 20.0, False),
    formal_privacy="none",
)
NONE = replace(BOUND, bound=None)


def promised(reason: str = "", **changes: float) -> Promise:
    bound = replace(BOUND.bound, reason=reason, **changes)
    return replace(BOUND, bound=bound, no_guarantee=reason)


UNATTACKED = Point("gradient-noise(0.1)", 0.1, (), None, None)


def point(mean: float, **changes: object) -> Point:
    leak = Leak(0, "a", Interval(mean, mean, mean), None, None, examples=16)
    return replace(UNATTACKED, leaks=(replace(leak, **changes),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (0.01, "up to near copies of the images"),
        (0.3, "up to recognisable images"),
        (0.6, "at most blurred or partial images"),
        (2.0, "The attacks that were run (the strongest: a, "),
    ],
)
def test_words_follow_the_error_over_that_of_a_guess(error, words):
    assert words in verdict(point(error), NONE, 0.1, True)


def test_the_worse_end_of_the_interval_decides():
    assert "recognisable" in verdict(point(0.5, error=Interval(0.5, 0.3, 0.7)), NONE, 0.1, True)


def test_the_worst_moment_counts():
    both = replace(UNATTACKED, leaks=(*point(2.0).leaks, *point(0.01).leaks))
    assert "near copies" in verdict(both, BOUND, 0.1, True)


def test_a_weak_attack_proves_nothing():
    text = verdict(point(2.0), NONE, 0.1, True)
    assert "got no further than a blind guess" in text
    assert KNOWS_MORE in text
    assert "found nothing" not in text
    assert "Nothing is guaranteed" in text


def test_attacks_that_cannot_judge_give_no_merit():
    told = ToldApart(20, 9, Interval(0.5, 0.3, 0.7), Interval(1.0, 1.0, 1.0))
    text = verdict(point(2.0, told_apart=told), NONE, 0.1, True, able=False)
    assert "cannot judge this model" in text
    assert "no further" not in text
    assert "picks the right one in 50 % of the trials (chance: 5 %)" in text
    unknown = verdict(point(2.0), NONE, 0.1, True, able=False)
    assert "Nothing was measured that could." in unknown


def test_a_bound_comes_with_its_conditions():
    text = verdict(point(2.0), BOUND, 0.1, True)
    assert "0.05" in text
    assert "a limit if the data were Gaussian, not a guarantee for images" in text


def test_without_an_attack_nothing_is_said_of_leaks():
    text = verdict(UNATTACKED, NONE, 0.1, True)
    assert text == "Not attacked in this run. Nothing is guaranteed."


def test_tables_are_not_called_images():
    for error in (0.01, 0.3, 0.6, 2.0):
        assert "image" not in verdict(point(error), BOUND, 0.1, False)


def test_one_example_that_was_rebuilt_is_not_lost_in_the_mean():
    assert "near copies of 1 of 16 images" in verdict(point(0.94, copies=1), NONE, 0.1, True)


def test_seeds_share_their_batches():
    """Four seeds that find the same on each batch tell no more than one."""

    def runs(seeds: int) -> list[RunResult]:
        return [
            RunResult(b, s, "finished", 1.0, *[(float(b),) * 2] * 2, None, None, None)
            for b in range(8)
            for s in range(seeds)
        ]

    one, four = (attack_result("a", True, runs(seeds)).mse for seeds in (1, 4))
    assert four.high - four.low > 0.8 * (one.high - one.low)


def test_a_bound_that_does_not_exclude_near_copies_says_so():
    words = "does not exclude near copies of the images"
    low, high = (promised(mse_pixels=error) for error in (0.009, 0.011))
    assert words in verdict(UNATTACKED, low, 0.1, True)
    assert words not in verdict(UNATTACKED, high, 0.1, True)


def test_a_bound_whose_assumptions_fail_guarantees_nothing():
    found = verdict(UNATTACKED, promised(reason="it jumps"), 0.1, True)
    assert "Nothing is guaranteed: it jumps." in found
    assert "reference error" not in found
    assert "Nothing is guaranteed: bare." in verdict(
        UNATTACKED, replace(NONE, no_guarantee="bare"), 0.1, True
    )
