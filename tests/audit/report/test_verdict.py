"""Verdicts say what was measured, and no more."""

from dataclasses import replace

import pytest

from gradveil.audit._result import AttackResult, BoundResult, RunResult
from gradveil.audit.measure._attacks import attack_result
from gradveil.audit.report import KNOWS_MORE, verdict
from gradveil.scoring import Interval

BOUND = BoundResult("full", "Gaussian", 0.05, 0.001, 0.02, 20.0, False)


def attack(error: float, knows: bool = False) -> AttackResult:
    value = Interval(error, error, error)
    return AttackResult("a", knows, value, value, value, None, None, 1.0, ())


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (0.001, "near copies"),
        (0.03, "recognisable images"),
        (0.06, "blurred or partial images"),
        (0.2, "The attacks that were run (the strongest: a, "),
    ],
)
def test_words_follow_the_error_over_that_of_a_guess(error, words):
    assert words in verdict([attack(error)], 0.1, None, True)


def test_the_strongest_attack_counts():
    text = verdict([attack(0.2), attack(0.001, knows=True)], 0.1, BOUND, True)
    assert "near copies" in text
    assert "which knows the defense" in text


def test_a_weak_attack_proves_nothing():
    text = verdict([attack(0.2)], 0.1, None, True)
    assert "got no further than a blind guess" in text
    assert KNOWS_MORE in text
    assert "found nothing" not in text
    assert "Nothing is guaranteed" in text


def test_a_bound_comes_with_its_conditions():
    text = verdict([attack(0.2)], 0.1, BOUND, True)
    assert "0.05" in text
    assert "if " in text
    assert "a limit if the data were Gaussian, not a guarantee for images" in text


def test_without_an_attack_nothing_is_said_of_leaks():
    assert verdict([], 0.1, None, True) == "Not attacked in this run. Nothing is guaranteed."


def test_tables_are_not_called_images():
    for error in (0.001, 0.03, 0.06, 0.2):
        assert "image" not in verdict([attack(error)], 0.1, BOUND, False)


def test_one_example_that_was_rebuilt_is_not_lost_in_the_mean():
    errors = (0.0, *[0.1] * 15)
    run = RunResult(0, 0, "finished", 1.0, errors, errors, None, None, errors, None)
    text = verdict([replace(attack(0.094), runs=(run,))], 0.1, None, True)
    assert "near copies of 1 of 16" in text


def test_seeds_share_their_batches():
    """Four seeds that find the same on each batch tell no more than one."""

    def runs(seeds: int) -> list[RunResult]:
        return [
            RunResult(b, s, "finished", 1.0, *[(float(b),) * 2] * 2, None, None, (1.0,), None)
            for b in range(8)
            for s in range(seeds)
        ]

    one, four = (attack_result("a", True, runs(seeds)).mse for seeds in (1, 4))
    assert four.high - four.low > 0.8 * (one.high - one.low)


def test_a_bound_that_does_not_exclude_near_copies_says_so():
    words = "does not exclude near copies of the images"
    low, high = (replace(BOUND, mse_pixels=error) for error in (0.009, 0.011))
    assert words in verdict([], 0.1, low, True)
    assert words not in verdict([], 0.1, high, True)


def test_a_bound_whose_assumptions_fail_guarantees_nothing():
    found = verdict([], 0.1, replace(BOUND, reason="it jumps"), True, "it jumps")
    assert "Nothing is guaranteed: it jumps." in found
    assert "squared error is below" not in found
    assert "Nothing is guaranteed: bare." in verdict([], 0.1, None, True, "bare")
