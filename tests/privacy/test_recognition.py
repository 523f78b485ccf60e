"""The chance of recognition: checked values, simulated attackers, blind guesses."""

import numpy as np
import pytest
from scipy import stats

from gradveil.privacy import recognition_bound

from .oracles import log_ratios


@pytest.mark.parametrize(
    ("guess", "rate", "std", "steps", "known"),
    [
        (0.1, 0.1, 1.0, 50, 0.341),
        (0.01, 0.02, 0.8, 200, 0.0424),
        (0.1, 1.0, 4.0, 16, 0.389),
    ],
)
def test_checked_values(guess, rate, std, steps, known):
    assert recognition_bound(guess, std, rate, steps) == pytest.approx(known, rel=5e-3)


@pytest.mark.parametrize(
    ("guess", "rate", "std", "steps"), [(0.1, 0.2, 1.0, 8), (0.02, 0.5, 2.0, 12)]
)
def test_the_best_attacker_comes_near_and_stays_below(guess, rate, std, steps):
    """Events of probability κ without the example, as probable as they get with it."""
    trials = 300_000
    without = log_ratios(rate, std, steps, trials, 0, inside=False)
    within = log_ratios(rate, std, steps, trials, 1, inside=True)
    success = np.mean(within >= np.quantile(without, 1 - guess))
    bound = recognition_bound(guess, std, rate, steps)
    noise = 4 * np.sqrt(success * (1 - success) / trials + (success / guess) ** 2 * guess / trials)
    assert success - noise < bound < success + noise + 0.004
    assert recognition_bound(guess, 1.5 * std, rate, steps) < success - noise


def test_an_attacker_who_names_one_of_many_is_below():
    """N gradients in orthogonal directions, all in once: the most likely is named."""
    count, std, trials = 20, 0.8, 50_000
    numbers = np.random.default_rng(0)
    sent = numbers.normal(0, std, (trials, count))
    sent[:, 0] += 1
    success = np.mean(sent.argmax(axis=1) == 0)
    bound = recognition_bound(1 / count, std, 1.0, 1)
    assert 1 / count < success < bound
    assert bound == pytest.approx(stats.norm.cdf(stats.norm.ppf(1 / count) + 1 / std))


def test_with_little_noise_or_a_sure_guess_nothing_is_promised():
    assert recognition_bound(0.1, 0.0, 0.5, 3) == 1.0
    assert recognition_bound(0.1, 0.02, 0.5, 3) == 1.0
    assert recognition_bound(1.0, 1.0, 0.5, 3) == 1.0
    assert 0.1 <= recognition_bound(0.1, 100.0, 0.01, 1) < 0.1002
